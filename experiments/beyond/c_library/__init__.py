"""C libraries beside the bundles they are made of and beside other libraries' C interfaces."""

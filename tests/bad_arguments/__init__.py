"""Bad arguments for every public function, drawn from its signature."""

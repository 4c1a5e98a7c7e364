"""The networks of MLPerf Tiny on microcontrollers: instructions and memory of C libraries."""

//! What AWS and the way to a task do wrong, on the double: each fault is counted there, so that a test shows that it
//! happened.

mod launches;
mod needs;
mod tunnels;

mod support;

//! The real server as a process: prints its address, its key and an image as JSON, and serves until its input ends.

use std::io::{Read, Write};

use opensandbox_double::{BASE_IMAGE, RealServer};
use serde_json::json;

fn main() -> std::io::Result<()> {
    let server = RealServer::start()?;
    let told = json!({ "address": server.address, "key": server.key, "image": BASE_IMAGE });
    writeln!(std::io::stdout(), "{told}")?;
    std::io::stdout().flush()?;
    // Whoever started this holds the other end of the input.
    let _ = std::io::stdin().read(&mut [0; 1]);
    let left = server.containers()?;
    drop(server);
    match left {
        0 => Ok(()),
        left => Err(std::io::Error::other(format!("containers are left: {left}"))),
    }
}

//! Lists every provider that a program finds here, and makes the one that is named.
//!
//! ```text
//! cargo run -p plugin-host --example list_providers -- local
//! ```

use plugin_host::{BuiltinSource, PluginHost};

fn main() -> sandbox_core::Result<()> {
    let host = PluginHost::builder().builtin("local", BuiltinSource::Installed).build()?;
    for listing in host.list_providers() {
        let path = listing.path.map(|path| path.display().to_string()).unwrap_or_default();
        println!("{} {:?} {:?} {path}", listing.name, listing.origin, listing.state);
    }
    for name in std::env::args().skip(1) {
        let made = host.create(&name, &serde_json::Value::Null);
        for step in host.load_trace(&name) {
            println!("  {:<14} {:?} {:?}", step.name, step.outcome, step.duration);
        }
        println!("made {}", made?.name());
    }
    Ok(())
}

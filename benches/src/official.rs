//! The official client of OpenSandbox, in a process of its own that measures each of its calls itself.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use opensandbox_double::RealServer;
use serde_json::Value;

/// The client, connected to one sandbox.
pub struct Official {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Official {
    /// Connects it to a sandbox, through the server or directly. It keeps so many connections.
    pub fn connect(server: &RealServer, sandbox: &str, use_server_proxy: bool, connections: usize) -> Self {
        let way = if use_server_proxy { "proxy" } else { "direct" };
        let mut child = Command::new(RealServer::client().expect("the official client is installed"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("opensandbox_sdk.py"))
            .args([&server.address, &server.key, sandbox, way, &connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the official client starts");
        let (orders, answers) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        let mut this = Self { child, orders, answers: BufReader::new(answers) };
        assert_eq!(this.answer(), "ready");
        this
    }

    /// Runs the command of every comparison, so many at once, in all `count` times: each one's time, and that of all.
    pub fn exec_many(&mut self, at_once: usize, count: usize) -> (Vec<Duration>, Duration) {
        self.order(&format!("exec {at_once} {count}"))
    }

    /// Runs a command that writes so many lines, and takes all of them.
    pub fn lines(&mut self, count: usize) -> Duration {
        self.order(&format!("lines {count}")).0[0]
    }

    fn order(&mut self, order: &str) -> (Vec<Duration>, Duration) {
        writeln!(self.orders.as_mut().expect("it is not over"), "{order}").expect("it takes orders");
        times(&self.answer())
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).expect("it answers with JSON")
    }
}

impl Drop for Official {
    fn drop(&mut self) {
        // It ends with its orders.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

fn times(answer: &Value) -> (Vec<Duration>, Duration) {
    let time = |value: &Value| Duration::from_secs_f64(value.as_f64().expect("a time is a number"));
    (answer["each"].as_array().expect("a list of times").iter().map(time).collect(), time(&answer["all"]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    #[test]
    fn times_are_read_in_seconds() {
        let (each, all) = super::times(&json!({ "each": [0.001, 0.25], "all": 1 }));
        assert_eq!((each, all), (vec![Duration::from_millis(1), Duration::from_millis(250)], Duration::from_secs(1)));
    }
}

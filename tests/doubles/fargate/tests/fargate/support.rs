//! A double, and the official client of the service.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use fargate_double::{BASE_IMAGE, Double, Key, Options};
use serde_json::{Value, json};

/// An upper bound on a loaded machine.
pub(crate) const LATE: Duration = Duration::from_secs(90);

fn python() -> PathBuf {
    if let Some(python) = env::var_os("SANDBOX_TEST_MOTO_PYTHON") {
        return python.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    target.join("python/moto/bin/python")
}

/// boto3, with a key.
pub(crate) struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn new(double: &Double, key: &Key) -> Self {
        Self::with(double, &key.access_key_id, &key.secret_access_key)
    }

    pub(crate) fn with(double: &Double, id: &str, secret: &str) -> Self {
        Self::at(&double.url(), id, secret)
    }

    /// The same with a double that may be another process.
    pub(crate) fn at(url: &str, id: &str, secret: &str) -> Self {
        let options = json!({
            "url": url, "region": "us-east-1", "access_key_id": id, "secret_access_key": secret,
        });
        let mut command = Command::new(python());
        command.args(["-c", include_str!("client.py"), &options.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run cargo xtask needs");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output) }
    }

    /// The answer, or its error.
    pub(crate) fn ask(&mut self, service: &str, operation: &str, arguments: Value) -> Result<Value, Value> {
        let line = json!({ "service": service, "operation": operation, "arguments": arguments });
        writeln!(self.input, "{line}").expect("the client listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the client answers");
        let mut answer: Value = serde_json::from_str(&line).expect("the client answers in JSON");
        match answer.get_mut("ok") {
            Some(ok) => Ok(ok.take()),
            None => Err(answer),
        }
    }

    pub(crate) fn ecs(&mut self, operation: &str, arguments: Value) -> Value {
        self.ask("ecs", operation, arguments).unwrap_or_else(|error| panic!("{operation}: {error}"))
    }

    /// Registers a definition of these containers and volumes, and gives its ARN.
    pub(crate) fn define(&mut self, containers: Value, volumes: Value) -> String {
        let definition = self.ecs("register_task_definition", definition(containers, volumes));
        definition["taskDefinition"]["taskDefinitionArn"].as_str().unwrap().to_owned()
    }

    pub(crate) fn describe(&mut self, double: &Double, arn: &str) -> Value {
        let arguments = json!({ "cluster": double.account().cluster, "tasks": [arn], "include": ["TAGS"] });
        self.ecs("describe_tasks", arguments)["tasks"][0].clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn definition(containers: Value, volumes: Value) -> Value {
    json!({
        "family": "test",
        "networkMode": "awsvpc",
        "requiresCompatibilities": ["FARGATE"],
        "cpu": "256",
        "memory": "512",
        "containerDefinitions": containers,
        "volumes": volumes,
    })
}

/// A request that runs a definition.
pub(crate) fn run(double: &Double, definition: &str) -> Value {
    let account = double.account();
    json!({
        "cluster": account.cluster,
        "taskDefinition": definition,
        "launchType": "FARGATE",
        "networkConfiguration": {"awsvpcConfiguration": {
            "subnets": account.subnets, "securityGroups": [account.security_group], "assignPublicIp": "DISABLED",
        }},
    })
}

/// A container that runs a script, with a port.
pub(crate) fn script(name: &str, script: &str) -> Value {
    json!({
        "name": name, "image": BASE_IMAGE, "essential": true, "entryPoint": ["sh", "-c"], "command": [script],
        "portMappings": [{"containerPort": 8000}],
    })
}

/// A double and its operator's client.
pub(crate) async fn double() -> (Double, Client) {
    let double = Double::start_with(Options::default()).await.expect("the double starts");
    let client = Client::new(&double, &double.account().operator);
    (double, client)
}

/// The ARN of the only task of an answer to RunTask.
pub(crate) fn arn(answer: &Value) -> String {
    answer["tasks"][0]["taskArn"].as_str().unwrap_or_else(|| panic!("no task: {answer}")).to_owned()
}

/// Tries until it is true.
pub(crate) async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + LATE;
    while !is_true() {
        assert!(std::time::Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

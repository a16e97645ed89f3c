//! The double as a whole.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};
use axum::Router;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    Fault,
    control_plane::{Account, ControlPlane},
    front,
    image::{self, Images, SIDECAR_IMAGE},
    task::{Status, Stop, Task},
    world::World,
};

/// The port of the services.
const PORT: u16 = 4566;

/// Doubles that can run at a time: each has one of the networks `127.64.0.0/16` to `127.126.0.0/16`.
const NETWORKS: std::ops::RangeInclusive<u8> = 64..=126;

/// How long tasks take, so that a test sees every state without waiting for it.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Making the network interface.
    pub provisioning: Duration,
    /// Pulling images.
    pub pending: Duration,
    /// Before the first container starts.
    pub activating: Duration,
    /// Before containers are asked to end.
    pub deactivating: Duration,
    /// Removing the network interface.
    pub deprovisioning: Duration,
    /// The most that a container has between being asked to end and being killed, whatever its definition says.
    pub kill_after: Duration,
    /// How long what is sent to a task, or comes from it, is on its way. Default none.
    pub distance: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            provisioning: Duration::from_millis(80),
            pending: Duration::from_millis(80),
            activating: Duration::from_millis(20),
            deactivating: Duration::from_millis(10),
            deprovisioning: Duration::from_millis(40),
            kill_after: Duration::from_secs(2),
            distance: Duration::ZERO,
        }
    }
}

/// How a double is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long tasks take.
    pub timing: Timing,
    /// The policy of the operator's user. Its resources and conditions are left away, as moto does not know them.
    pub policy: Value,
    /// Parameters of Systems Manager, by name.
    pub parameters: BTreeMap<String, String>,
    /// Secrets of Secrets Manager, by name.
    pub secrets: BTreeMap<String, String>,
}

impl Default for Options {
    /// A policy with what sandboxes on Fargate are made with.
    fn default() -> Self {
        let actions = [
            "ecs:RegisterTaskDefinition",
            "ecs:DescribeTaskDefinition",
            "ecs:RunTask",
            "ecs:DescribeTasks",
            "ecs:StopTask",
            "ecs:ListTasks",
            "ecs:TagResource",
            "ecs:ListTagsForResource",
            "ec2:DescribeNetworkInterfaces",
            "ssm:GetParameter",
            "secretsmanager:GetSecretValue",
            "sts:GetCallerIdentity",
            "iam:PassRole",
            "s3:PutObject",
            "s3:GetObject",
            "s3:DeleteObject",
            "ecr:DescribeRepositories",
            "ecr:DescribeImages",
            "codebuild:StartBuild",
            "codebuild:BatchGetBuilds",
            "codebuild:StopBuild",
            "logs:GetLogEvents",
        ];
        let statement = json!({ "Effect": "Allow", "Action": actions, "Resource": "*" });
        Self {
            timing: Timing::default(),
            policy: json!({ "Version": "2012-10-17", "Statement": [statement] }),
            parameters: BTreeMap::new(),
            secrets: BTreeMap::new(),
        }
    }
}

/// A task, as the service knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// Its ARN.
    pub arn: String,
    /// Its state, in the service's words.
    pub status: &'static str,
    /// Its address.
    pub address: Ipv4Addr,
    /// Why it stopped, in the service's words.
    pub stop_code: Option<&'static str>,
    /// The same in a sentence.
    pub stopped_reason: Option<String>,
}

/// A running double. Dropped, it ends every task; [`stop`](Self::stop) also waits for it.
pub struct Double {
    world: Arc<World>,
    server: JoinHandle<()>,
    _control_plane: ControlPlane,
    _folder: TempDir,
}

impl Double {
    /// Starts one. It takes some seconds.
    ///
    /// # Errors
    /// What is missing, and how to install it.
    pub async fn start() -> Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Starts one with these options.
    ///
    /// # Errors
    /// What is missing, and how to install it.
    pub async fn start_with(options: Options) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("fargate-double-").tempdir()?;
        let images = folder.path().join("images");
        let images = tokio::task::spawn_blocking(|| Images::make(images)).await??;
        let (listener, network) = claim().await.context("every network of the loopback is taken by another double")?;
        let services = SocketAddrV4::new(Ipv4Addr::new(127, network, 0, 1), PORT);
        let wanted = json!({
            "network": format!("127.{network}"),
            "region": "us-east-1",
            "policy": options.policy,
            "parameters": options.parameters,
            "secrets": options.secrets,
        });
        let control_plane = ControlPlane::start(&wanted).await.context("control plane")?;
        let account = control_plane.account.clone();
        let world = World::new(folder.path().to_owned(), images, options.timing, account, services, front::client());
        let world = Arc::new(world);
        let app = Router::new().fallback(front::pass).with_state(world.clone());
        let server = tokio::spawn(async move {
            // It serves until it is aborted.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { world, server, _control_plane: control_plane, _folder: folder })
    }

    /// Where the services are: `http://ADDRESS:PORT`, from here and from inside of tasks.
    pub fn url(&self) -> String {
        format!("http://{}", self.world.services)
    }

    /// What it made of an account.
    pub fn account(&self) -> &Account {
        &self.world.account
    }

    /// Settings of the provider, to reach it as the operator.
    pub fn settings(&self) -> Value {
        let account = self.account();
        json!({
            "region": account.region,
            "endpoint_url": self.url(),
            "credentials": {
                "access_key_id": account.operator.access_key_id,
                "secret_access_key": account.operator.secret_access_key,
            },
            "cluster": account.cluster,
            "subnets": account.subnets,
            "security_groups": [account.security_group],
            "assign_public_ip": false,
            "address": "private",
            "execution_role_arn": account.role("execution"),
            "sidecar": { "image": SIDECAR_IMAGE, "agent_path": image::AGENT_PATH },
            "shared_storage": { "file_system_id": "fs-0d0b1e", "root_directory": "/shared" },
            "key": { "file": self.world.folder.join("key") },
        })
    }

    /// All settings: also those for images that are copied and built.
    pub fn settings_with_builds(&self) -> Value {
        let mut settings = self.settings();
        for (key, value) in self.build_settings().as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        settings
    }

    /// Settings for images that are copied and built, over the others.
    pub fn build_settings(&self) -> Value {
        json!({
            "s3_bucket": self.account().bucket,
            "ecr_repository": "sandbox-images",
            "build": { "project": "sandbox-build" },
        })
    }

    /// Lets something go wrong.
    pub fn fault(&self, fault: Fault) {
        self.world.faults().add(fault);
    }

    /// How many faults are still to come.
    pub fn faults_left(&self) -> u32 {
        self.world.faults().left()
    }

    /// How many faults of a name (see the constructors of [`Fault`]) have happened.
    pub fn happened(&self, name: &str) -> u32 {
        self.world.faults().happened(name)
    }

    /// How often an operation was asked for, for example `RunTask`.
    pub fn calls(&self, operation: &str) -> u64 {
        self.world.journal().count(operation)
    }

    /// How often it was answered with this status.
    pub fn answers(&self, operation: &str, status: u16) -> u64 {
        self.world.journal().answers(operation, status)
    }

    /// What it was asked for with, oldest first: JSON, or the fields of a form.
    pub fn requests(&self, operation: &str) -> Vec<Value> {
        self.world.journal().requests(operation)
    }

    /// The paths of the objects that there are, among those that signed queries have put there.
    pub fn objects(&self) -> Vec<String> {
        self.world.objects().keys().cloned().collect()
    }

    /// Every operation that was asked for.
    pub fn operations(&self) -> Vec<String> {
        self.world.journal().operations()
    }

    /// Every task so far, oldest first.
    pub fn tasks(&self) -> Vec<TaskInfo> {
        self.world.tasks().iter().map(|task| info(task)).collect()
    }

    /// Those that are not stopped and that nobody asked to stop.
    pub fn living(&self) -> Vec<TaskInfo> {
        self.world.tasks().iter().filter(|task| task.is_wanted()).map(|task| info(task)).collect()
    }

    /// When a task got to run, if it did.
    pub fn running_since(&self, arn: &str) -> Option<SystemTime> {
        self.find(arn).running_since()
    }

    /// Until a task has stopped; ours to wait for, as nothing of it is left then.
    pub async fn stopped(&self, arn: &str) {
        self.find(arn).reached(Status::Stopped).await;
    }

    /// Stops a task behind its owner's back, as an operator or the service does; for example `SpotInterruption`.
    pub fn stop_task(&self, arn: &str, code: &'static str, reason: &str) {
        self.world.faults().count("task stopped");
        self.find(arn).ask_to_stop(Stop { code, reason: reason.to_owned() });
    }

    /// Kills the first process of a container. Returns whether there was one.
    pub async fn kill_container(&self, arn: &str, name: &str) -> bool {
        let task = self.find(arn);
        let plane = task.plane.lock().await;
        plane.as_ref().is_some_and(|plane| plane.kill(name))
    }

    /// Resets every connection to a task. Returns how many there were.
    pub fn cut(&self, arn: &str) -> usize {
        self.find(arn).gate.cut()
    }

    /// Does so when this many more bytes have gone either way.
    pub fn cut_after(&self, arn: &str, bytes: u64) {
        self.find(arn).gate.cut_after(bytes);
    }

    /// How many connections to a task were cut.
    pub fn was_cut(&self, arn: &str) -> usize {
        self.find(arn).gate.was_cut()
    }

    /// Refuses new connections to a task, or no longer.
    pub fn refuse(&self, arn: &str, is_refusing: bool) {
        self.find(arn).gate.refuse(is_refusing);
    }

    /// Carries nothing to and from a task, or goes on where it was.
    pub fn stall(&self, arn: &str, is_stalled: bool) {
        self.find(arn).gate.stall(is_stalled);
    }

    /// Connections to a task that are open.
    pub fn connections(&self, arn: &str) -> usize {
        self.find(arn).gate.open()
    }

    /// The last 64 KiB that a container printed.
    pub fn log(&self, arn: &str, container: &str) -> String {
        let task = self.find(arn);
        let facts = task.facts();
        let log = facts.containers.iter().find(|one| one.name == container).map(|one| one.log.clone());
        drop(facts);
        let log = log.expect("a container of the task's definition");
        let text = log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn find(&self, arn: &str) -> Arc<Task> {
        self.world.task(arn).expect("a task of this double")
    }

    /// Ends every task and the services, and waits for it.
    pub async fn stop(self) {
        for task in self.world.tasks() {
            task.ask_to_stop(Stop::asked("the double ends"));
        }
        let mut lives = self.world.take_lives();
        while lives.join_next().await.is_some() {}
        self.server.abort();
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.server.abort();
        drop(self.world.take_lives());
        for task in self.world.tasks() {
            // Whoever holds it is aborted, and drops it.
            if let Ok(mut plane) = task.plane.try_lock() {
                drop(plane.take());
            }
        }
    }
}

fn info(task: &Task) -> TaskInfo {
    let facts = task.facts();
    TaskInfo {
        arn: task.arn.clone(),
        status: facts.status.name(),
        address: task.address,
        stop_code: facts.stop.as_ref().map(|stop| stop.code),
        stopped_reason: facts.stop.as_ref().map(|stop| stop.reason.clone()),
    }
}

/// A network that no other double has: whoever listens at its first address has it.
async fn claim() -> io::Result<(TcpListener, u8)> {
    let count = NETWORKS.len();
    let first = std::process::id() as usize;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for step in 0..count {
        let network = NETWORKS.clone().nth((first + step) % count).unwrap_or(*NETWORKS.start());
        match TcpListener::bind(SocketAddrV4::new(Ipv4Addr::new(127, network, 0, 1), PORT)).await {
            Ok(listener) => return Ok((listener, network)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

//! A task: what the service tells of it.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    definition::{Definition, Overrides},
    network::Gate,
    plane::{Log, Plane},
};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    Provisioning,
    Pending,
    Activating,
    Running,
    Deactivating,
    Stopping,
    Deprovisioning,
    Stopped,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Provisioning => "PROVISIONING",
            Self::Pending => "PENDING",
            Self::Activating => "ACTIVATING",
            Self::Running => "RUNNING",
            Self::Deactivating => "DEACTIVATING",
            Self::Stopping => "STOPPING",
            Self::Deprovisioning => "DEPROVISIONING",
            Self::Stopped => "STOPPED",
        }
    }
}

/// Why it stops.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    pub(crate) code: &'static str,
    pub(crate) reason: String,
}

impl Stop {
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self { code: "TaskFailedToStart", reason: reason.into() }
    }

    pub(crate) fn asked(reason: impl Into<String>) -> Self {
        Self { code: "UserInitiated", reason: reason.into() }
    }
}

/// What is told of a container.
#[derive(Clone, Debug)]
pub(crate) struct ContainerFacts {
    pub(crate) name: String,
    image: String,
    status: &'static str,
    pub(crate) exit_code: Option<i32>,
    pub(crate) reason: Option<String>,
    pub(crate) log: Log,
}

impl ContainerFacts {
    pub(crate) fn image_is(&self, image: &str) -> bool {
        self.image == image
    }
}

#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) status: Status,
    pub(crate) stop: Option<Stop>,
    pub(crate) containers: Vec<ContainerFacts>,
    is_attached: bool,
    /// Growing with every change.
    version: u64,
    /// When it reached each state that has a time.
    times: Vec<(&'static str, f64)>,
}

/// A task.
pub(crate) struct Task {
    pub(crate) arn: String,
    /// What moto answered when it was started.
    pub(crate) record: Value,
    pub(crate) address: Ipv4Addr,
    hostname: String,
    pub(crate) definition: Definition,
    pub(crate) overrides: Overrides,
    pub(crate) gate: Arc<Gate>,
    pub(crate) plane: tokio::sync::Mutex<Option<Plane>>,
    facts: Mutex<Facts>,
    stop: watch::Sender<Option<Stop>>,
    status: watch::Sender<Status>,
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Task {
    /// One of a record of moto.
    pub(crate) fn new(
        record: &Value,
        definition: Definition,
        overrides: Overrides,
        distance: Duration,
    ) -> Option<Arc<Self>> {
        let details = record["attachments"][0]["details"].as_array()?;
        let address = details.iter().find(|detail| detail["name"] == "privateIPv4Address")?["value"].as_str()?;
        let containers = definition.container_definitions.iter().map(|container| ContainerFacts {
            name: container.name.clone(),
            image: container.image.clone(),
            status: "PENDING",
            exit_code: None,
            reason: None,
            log: Log::default(),
        });
        let facts = Facts {
            status: Status::Provisioning,
            stop: None,
            containers: containers.collect(),
            is_attached: false,
            version: 1,
            times: vec![("createdAt", now())],
        };
        Some(Arc::new(Self {
            arn: record["taskArn"].as_str()?.to_owned(),
            record: record.clone(),
            address: address.parse().ok()?,
            hostname: format!("ip-{}.ec2.internal", address.replace('.', "-")),
            definition,
            overrides,
            gate: Gate::new(distance),
            plane: tokio::sync::Mutex::new(None),
            facts: Mutex::new(facts),
            stop: watch::Sender::default(),
            status: watch::Sender::new(Status::Provisioning),
        }))
    }

    /// The last part of its ARN.
    pub(crate) fn id(&self) -> &str {
        self.arn.rsplit('/').next().unwrap_or(&self.arn)
    }

    /// The name of each of its containers.
    pub(crate) fn hostname(&self) -> &str {
        &self.hostname
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self) -> Status {
        self.facts().status
    }

    /// Whether it is to run, not to stop.
    pub(crate) fn is_wanted(&self) -> bool {
        self.stop.borrow().is_none() && self.status() < Status::Deactivating
    }

    pub(crate) fn set(&self, status: Status) {
        let mut facts = self.facts();
        facts.status = status;
        facts.version += 1;
        let time = match status {
            Status::Pending => {
                facts.is_attached = true;
                Some("pullStartedAt")
            }
            Status::Activating => Some("pullStoppedAt"),
            Status::Running => Some("startedAt"),
            Status::Deactivating => Some("stoppingAt"),
            Status::Stopped => Some("stoppedAt"),
            _ => None,
        };
        facts.times.extend(time.map(|name| (name, now())));
        for container in &mut facts.containers {
            match status {
                Status::Running if container.status == "PENDING" => container.status = "RUNNING",
                Status::Stopped => container.status = "STOPPED",
                _ => {}
            }
        }
        drop(facts);
        self.status.send_replace(status);
    }

    /// When it got to run.
    pub(crate) fn running_since(&self) -> Option<SystemTime> {
        let facts = self.facts();
        let time = facts.times.iter().find(|(name, _)| *name == "startedAt");
        time.map(|(_, seconds)| UNIX_EPOCH + Duration::from_secs_f64(*seconds))
    }

    /// Until it is so far.
    pub(crate) async fn reached(&self, status: Status) {
        // The sender is this value's: it is there.
        let _ = self.status.subscribe().wait_for(|now| *now >= status).await;
    }

    /// Says how a container has ended.
    pub(crate) fn set_exit_code(&self, name: &str, code: i32) {
        let mut facts = self.facts();
        for container in facts.containers.iter_mut().filter(|container| container.name == name) {
            container.status = "STOPPED";
            container.exit_code = Some(code);
        }
    }

    /// Lets it stop, for the first reason of all.
    pub(crate) fn ask_to_stop(&self, stop: Stop) {
        self.stop.send_if_modified(|asked| {
            let is_first = asked.is_none();
            if is_first {
                *asked = Some(stop);
            }
            is_first
        });
    }

    pub(crate) async fn stop_asked(&self) -> Stop {
        let mut stop = self.stop.subscribe();
        match stop.wait_for(Option::is_some).await.map(|stop| stop.clone()) {
            Ok(Some(stop)) => stop,
            _ => std::future::pending().await,
        }
    }

    /// What DescribeTasks says: moto's record, with what is true of the task.
    pub(crate) fn view(&self, record: &Value) -> Value {
        let facts = self.facts();
        let mut view = record.clone();
        let asked = self.stop.borrow().clone();
        let is_wanted = asked.is_none() && facts.status < Status::Deactivating;
        view["lastStatus"] = json!(facts.status.name());
        view["desiredStatus"] = json!(if is_wanted { "RUNNING" } else { "STOPPED" });
        view["version"] = json!(facts.version);
        view["launchType"] = json!("FARGATE");
        view["platformVersion"] = json!("1.4.0");
        view["platformFamily"] = json!("Linux");
        view["healthStatus"] = json!("UNKNOWN");
        view["enableExecuteCommand"] = json!(false);
        let or = |key: &str, default: Value| match &record["overrides"][key] {
            Value::Null => default,
            value => value.clone(),
        };
        view["cpu"] = or("cpu", json!(self.definition.cpu));
        view["memory"] = or("memory", json!(self.definition.memory));
        let storage = self.definition.ephemeral_storage.clone().unwrap_or(json!({ "sizeInGiB": 20 }));
        view["ephemeralStorage"] = or("ephemeralStorage", storage);
        for key in ["stoppedReason", "stopCode", "startedAt", "stoppedAt"] {
            view.as_object_mut().map(|view| view.remove(key));
        }
        for (name, time) in &facts.times {
            view[*name] = json!(time);
        }
        if let Some(stop) = facts.stop.clone().or(asked) {
            view["stopCode"] = json!(stop.code);
            view["stoppedReason"] = json!(stop.reason);
        }
        self.attach(&mut view, &facts);
        let containers = facts.containers.iter().enumerate();
        view["containers"] = containers.map(|(index, container)| self.container(index, container, &facts)).collect();
        view
    }

    /// Its network interface is there from PENDING on.
    fn attach(&self, view: &mut Value, facts: &Facts) {
        let is_gone = facts.status == Status::Stopped;
        let attachment = &mut view["attachments"][0];
        match (facts.is_attached, is_gone) {
            (true, false) => attachment["status"] = json!("ATTACHED"),
            (true, true) => attachment["status"] = json!("DELETED"),
            (false, _) => {
                attachment["status"] = json!(if is_gone { "DELETED" } else { "PRECREATED" });
                if let Some(details) = attachment["details"].as_array_mut() {
                    details.retain(|detail| detail["name"] == "subnetId");
                }
            }
        }
    }

    fn container(&self, index: usize, container: &ContainerFacts, facts: &Facts) -> Value {
        let mut view = json!({
            "containerArn": format!("{}/{}", self.arn.replace(":task/", ":container/"), container.name),
            "taskArn": self.arn,
            "name": container.name,
            "image": container.image,
            "lastStatus": container.status,
            "healthStatus": "UNKNOWN",
            "networkInterfaces": [],
        });
        if facts.is_attached {
            view["networkInterfaces"] = json!([{ "privateIpv4Address": self.address }]);
        }
        if facts.status >= Status::Activating {
            view["runtimeId"] = json!(format!("{}-{}", self.id().replace('-', ""), index));
        }
        for (key, value) in [("exitCode", json!(container.exit_code)), ("reason", json!(container.reason))] {
            if !value.is_null() {
                view[key] = value;
            }
        }
        view
    }
}

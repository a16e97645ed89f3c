//! The calls of Elastic Container Service.

use std::collections::BTreeMap;

use sandbox_core::SandboxStatus;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Aws, Called, Service};

const PREFIX: &str = "AmazonEC2ContainerServiceV20141113";

/// Most tasks of one question.
pub(crate) const TASKS_MAX: usize = 100;

/// A null counts as nothing.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// A task definition that is there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TaskDefinition {
    pub(crate) task_definition_arn: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) status: String,
}

/// A task as ECS knows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Task {
    pub(crate) task_arn: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) last_status: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) desired_status: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) stopped_reason: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) stop_code: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) started_by: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    attachments: Vec<Attachment>,
    #[serde(deserialize_with = "or_default")]
    tags: Vec<Tag>,
}

/// A container of a task.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Container {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) exit_code: Option<i64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Attachment {
    #[serde(deserialize_with = "or_default")]
    details: Vec<Detail>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Detail {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Tag {
    key: String,
    #[serde(deserialize_with = "or_default")]
    value: String,
}

impl Task {
    fn detail(&self, name: &str) -> Option<&str> {
        let all = self.attachments.iter().flat_map(|attachment| &attachment.details);
        all.filter(|detail| detail.name == name && !detail.value.is_empty()).map(|detail| detail.value.as_str()).next()
    }

    /// The address of its network interface.
    pub(crate) fn private_address(&self) -> Option<std::net::IpAddr> {
        self.detail("privateIPv4Address").and_then(|text| text.parse().ok())
    }

    pub(crate) fn interface(&self) -> Option<&str> {
        self.detail("networkInterfaceId")
    }

    pub(crate) fn tags(&self) -> BTreeMap<String, String> {
        self.tags.iter().map(|tag| (tag.key.clone(), tag.value.clone())).collect()
    }

    pub(crate) fn status(&self) -> SandboxStatus {
        match self.last_status.as_str() {
            // What shall stop is as good as stopped.
            _ if self.desired_status == "STOPPED" => SandboxStatus::Stopped,
            "PROVISIONING" | "PENDING" | "ACTIVATING" => SandboxStatus::Starting,
            "RUNNING" => SandboxStatus::Running,
            "DEACTIVATING" | "STOPPING" | "DEPROVISIONING" | "STOPPED" | "DELETED" => SandboxStatus::Stopped,
            _ => SandboxStatus::Unknown,
        }
    }

    /// The last part of the ARN.
    pub(crate) fn id(&self) -> &str {
        task_id(&self.task_arn)
    }
}

pub(crate) fn task_id(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or_default()
}

/// What was not done, and why.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Failed {
    #[serde(deserialize_with = "or_default")]
    pub(crate) arn: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) reason: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) detail: String,
}

/// The answer to a launch, or to a question about tasks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Launch {
    #[serde(deserialize_with = "or_default")]
    pub(crate) tasks: Vec<Task>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) failures: Vec<Failed>,
}

/// A cluster.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    pub(crate) aws: &'a Aws,
    pub(crate) name: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Defined {
    task_definition: TaskDefinition,
}

impl Aws {
    /// The newest revision of a family; none where there is none that can be run.
    pub(crate) async fn describe_definition(&self, family: &str, deadline: Instant) -> Called<Option<TaskDefinition>> {
        let input = json!({ "taskDefinition": family });
        match self.json::<Defined>(Service::Ecs, (PREFIX, "DescribeTaskDefinition"), &input, deadline).await {
            Ok(defined) => Ok(Some(defined.task_definition).filter(|found| found.status != "INACTIVE")),
            Err(error) if error.code() == "ClientException" && error.class() == super::Class::Fatal => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tries once: whoever is refused looks first whether somebody else has registered it.
    pub(crate) async fn register_definition(&self, input: &Value, deadline: Instant) -> Called<TaskDefinition> {
        let target = (PREFIX, "RegisterTaskDefinition");
        let defined: Defined = self.json_tries(Service::Ecs, target, input, deadline, 1).await?;
        Ok(defined.task_definition)
    }
}

impl Cluster<'_> {
    async fn call<R: serde::de::DeserializeOwned>(
        &self,
        action: &'static str,
        mut input: Value,
        deadline: Instant,
    ) -> Called<R> {
        input["cluster"] = self.name.into();
        self.aws.json(Service::Ecs, (PREFIX, action), &input, deadline).await
    }

    pub(crate) async fn run(&self, input: Value, deadline: Instant) -> Called<Launch> {
        self.call("RunTask", input, deadline).await
    }

    /// What is known of these tasks, at most [`TASKS_MAX`], with their tags.
    pub(crate) async fn describe(&self, tasks: &[String], deadline: Instant) -> Called<Launch> {
        self.call("DescribeTasks", json!({ "tasks": tasks, "include": ["TAGS"] }), deadline).await
    }

    /// Stops a task. One that is gone is fine.
    pub(crate) async fn stop(&self, task: &str, reason: &str, deadline: Instant) -> Called<()> {
        match self.call::<Map<String, Value>>("StopTask", json!({ "task": task, "reason": reason }), deadline).await {
            Ok(_) => Ok(()),
            Err(error) if error.message().contains("task was not found") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The ARNs of the tasks with this `startedBy` that are not stopped. That filter must stand alone.
    pub(crate) async fn list(&self, started_by: &str, deadline: Instant) -> Called<Vec<String>> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Listed {
            #[serde(default)]
            task_arns: Vec<String>,
            #[serde(default)]
            next_token: Option<String>,
        }
        let (mut all, mut token) = (Vec::new(), None::<String>);
        loop {
            let mut input = json!({ "startedBy": started_by });
            if let Some(token) = token {
                input["nextToken"] = token.into();
            }
            let listed: Listed = self.call("ListTasks", input, deadline).await?;
            all.extend(listed.task_arns);
            token = listed.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(all);
            }
        }
    }

    pub(crate) async fn tag(&self, task_arn: &str, tags: &BTreeMap<String, String>, deadline: Instant) -> Called<()> {
        let input = json!({ "resourceArn": task_arn, "tags": tag_list(tags) });
        let target = (PREFIX, "TagResource");
        self.aws.json::<Map<String, Value>>(Service::Ecs, target, &input, deadline).await.map(drop)
    }
}

/// Tags as ECS takes them.
pub(crate) fn tag_list(tags: &BTreeMap<String, String>) -> Value {
    tags.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect()
}

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxStatus;
    use serde_json::json;

    use super::{Launch, Task};

    #[test]
    fn an_answer_with_nulls_and_unknown_keys_is_read() {
        let text = json!({
            "tasks": [{
                "taskArn": "arn:aws:ecs:r:1:task/c/abc", "lastStatus": "RUNNING", "desiredStatus": "RUNNING",
                "stoppedReason": null, "containers": null, "new": {}, "tags": [{"key": "k", "value": "v"}],
                "attachments": [{"details": [
                    {"name": "networkInterfaceId", "value": "eni-1"},
                    {"name": "privateIPv4Address", "value": "10.0.0.7"},
                ]}],
            }],
            "failures": null,
        });
        let launch: Launch = serde_json::from_value(text).unwrap();
        let task = &launch.tasks[0];
        assert_eq!((task.id(), task.interface(), task.status()), ("abc", Some("eni-1"), SandboxStatus::Running));
        assert_eq!(task.private_address(), Some("10.0.0.7".parse().unwrap()));
        assert_eq!(task.tags()["k"], "v");
    }

    #[test]
    fn every_state_of_a_task_is_one_of_a_sandbox() {
        let status = |last: &str, desired: &str| {
            Task { last_status: last.into(), desired_status: desired.into(), ..Task::default() }.status()
        };
        for last in ["PROVISIONING", "PENDING", "ACTIVATING"] {
            assert_eq!(status(last, "RUNNING"), SandboxStatus::Starting);
        }
        assert_eq!(status("RUNNING", "RUNNING"), SandboxStatus::Running);
        for last in ["RUNNING", "DEACTIVATING", "STOPPING", "DEPROVISIONING", "STOPPED"] {
            assert_eq!(status(last, "STOPPED"), SandboxStatus::Stopped);
        }
        assert_eq!(status("SOMETHING", "RUNNING"), SandboxStatus::Unknown);
    }
}

//! One question for all tasks that somebody waits for, instead of one for each.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbox_core::{ErrorKind, SandboxError, tracing};
use tokio::{sync::watch, time::Instant};

use crate::aws::{Aws, Class, Cluster, TASKS_MAX, Task};

/// The pause between two rounds, for each question of a round: many tasks are asked for less often, not faster.
const PAUSE: Duration = Duration::from_millis(300);
/// How long one question may take, tries included.
const LIMIT: Duration = Duration::from_secs(30);

/// What was seen last of a task.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// Nothing yet.
    Nothing,
    /// AWS does not know it, or not yet.
    Missing,
    Task(Box<Task>),
    /// Tasks may not be asked for.
    Refused(ErrorKind, String),
}

/// The tasks of one cluster that somebody waits for.
pub(crate) struct Poller {
    aws: Arc<Aws>,
    cluster: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    watched: HashMap<String, watch::Sender<Seen>>,
    is_running: bool,
}

/// A task that is watched for as long as this lives.
pub(crate) struct Watching {
    poller: Arc<Poller>,
    arn: String,
    receiver: watch::Receiver<Seen>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.poller.state().watched.remove(&self.arn);
    }
}

impl Watching {
    /// What was seen last, the next time that there is something new.
    pub(crate) async fn next(&mut self) -> Seen {
        // The sender lives as long as this is watched.
        let _ = self.receiver.changed().await;
        self.receiver.borrow_and_update().clone()
    }
}

impl Poller {
    pub(crate) fn new(aws: Arc<Aws>, cluster: String) -> Arc<Self> {
        Arc::new(Self { aws, cluster, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a task; only one at a time can watch the same.
    pub(crate) fn watch(self: &Arc<Self>, arn: &str) -> Watching {
        let (sender, receiver) = watch::channel(Seen::Nothing);
        let mut state = self.state();
        state.watched.insert(arn.to_owned(), sender);
        if !std::mem::replace(&mut state.is_running, true) {
            let poller = self.clone();
            tokio::spawn(async move { poller.run().await });
        }
        drop(state);
        Watching { poller: self.clone(), arn: arn.to_owned(), receiver }
    }

    async fn run(&self) {
        loop {
            let all: Vec<String> = {
                let mut state = self.state();
                if state.watched.is_empty() {
                    state.is_running = false;
                    return;
                }
                state.watched.keys().cloned().collect()
            };
            let mut pause = Duration::ZERO;
            for some in all.chunks(TASKS_MAX) {
                self.look(some).await;
                pause += PAUSE;
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn look(&self, arns: &[String]) {
        let cluster = Cluster { aws: &self.aws, name: &self.cluster };
        let answer = match cluster.describe(arns, Instant::now() + LIMIT).await {
            Ok(answer) => answer,
            Err(error) if matches!(error.class(), Class::Throttle | Class::Transient) => {
                return tracing::warn!("tasks cannot be asked for right now");
            }
            Err(error) => {
                let error = SandboxError::from(error);
                for arn in arns {
                    self.tell(arn, Seen::Refused(error.kind(), error.message().to_owned()));
                }
                return;
            }
        };
        for failed in answer.failures.iter().filter(|failed| failed.reason == "MISSING") {
            self.tell(&failed.arn, Seen::Missing);
        }
        for task in answer.tasks {
            let arn = task.task_arn.clone();
            self.tell(&arn, Seen::Task(Box::new(task)));
        }
    }

    fn tell(&self, arn: &str, seen: Seen) {
        if let Some(sender) = self.state().watched.get(arn) {
            sender.send_replace(seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::{Value, json};

    use super::{Poller, Seen};
    use crate::aws::testing::Stub;

    fn poller(stub: &Stub) -> Arc<Poller> {
        Poller::new(Arc::new(stub.aws("P")), "c".into())
    }

    #[tokio::test]
    async fn f06_many_tasks_are_asked_for_at_once_and_nobody_is_asked_when_nobody_waits() {
        let stub = Stub::start(|asked| {
            let input: Value = serde_json::from_str(&asked.body).unwrap();
            let arns = input["tasks"].as_array().unwrap();
            assert!(arns.len() <= 100, "{}", arns.len());
            let tasks: Vec<_> = arns.iter().map(|arn| json!({"taskArn": arn, "lastStatus": "RUNNING"})).collect();
            (200, json!({ "tasks": tasks, "failures": [] }).to_string())
        })
        .await;
        let poller = poller(&stub);
        let mut all: Vec<_> = (0..150).map(|number| poller.watch(&format!("arn/{number}"))).collect();
        for watching in &mut all {
            assert!(matches!(watching.next().await, Seen::Task(task) if task.last_status == "RUNNING"));
        }
        let rounds = stub.asked().len();
        assert!(rounds < 20, "{rounds} questions for 150 tasks");
        drop(all);
        tokio::time::sleep(3 * super::PAUSE).await;
        let after = stub.asked().len();
        tokio::time::sleep(4 * super::PAUSE).await;
        assert_eq!(stub.asked().len(), after);
    }

    #[tokio::test]
    async fn a_task_that_is_missing_and_a_question_that_is_refused_are_told() {
        let stub = Stub::start(|asked| match asked.body.contains("refuse") {
            true => (400, r#"{"__type":"AccessDeniedException","message":"no"}"#.into()),
            false => (200, json!({"tasks": [], "failures": [{"arn": "arn/x", "reason": "MISSING"}]}).to_string()),
        })
        .await;
        let poller = poller(&stub);
        let limit = Duration::from_secs(20);
        let mut missing = poller.watch("arn/x");
        assert!(matches!(tokio::time::timeout(limit, missing.next()).await.unwrap(), Seen::Missing));
        drop(missing);
        let mut refused = poller.watch("arn/refuse");
        assert!(matches!(tokio::time::timeout(limit, refused.next()).await.unwrap(), Seen::Refused(..)));
    }
}

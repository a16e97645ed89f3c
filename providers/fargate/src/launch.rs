//! One launch: RunTask under a token of its own, on whatever capacity and subnet has room.

use std::collections::BTreeMap;

use sandbox_core::{Result, SandboxError, tracing};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::{
    aws::{Aws, CallError, Class, Cluster, Failed, Launch, Task, backoff, by_words, tag_list},
    config::{Capacity, FargateConfig},
    definition::{Definitions, Recipe},
    error::NAME,
    settings::Settings,
};

/// How long taking back may take.
const TAKE_BACK_LIMIT: Duration = Duration::from_secs(60);

/// Everything that a launch is made of.
pub(crate) struct Order<'a> {
    pub(crate) aws: &'a Aws,
    pub(crate) config: &'a FargateConfig,
    pub(crate) settings: &'a Settings,
    pub(crate) definitions: &'a Definitions,
    pub(crate) recipe: Recipe<'a>,
    pub(crate) capacity: Capacity,
    pub(crate) overrides: Value,
    pub(crate) tags: BTreeMap<String, String>,
}

/// What a launch has made so far, or may have made.
#[derive(Default)]
pub(crate) struct Made {
    arn: Option<String>,
    /// A request whose answer is not known: the same one again says which task it made.
    unclear: Option<Value>,
}

/// Where a task shall run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    is_spot: bool,
    /// None: AWS chooses among all.
    subnet: Option<usize>,
}

/// The places that are tried, one after the other, where there is no room.
#[derive(Debug)]
struct Places {
    all: Vec<Place>,
    next: usize,
}

impl Places {
    fn new(capacity: Capacity, subnets: usize) -> Self {
        let kinds: &[bool] = match capacity {
            Capacity::OnDemand => &[false],
            Capacity::Spot => &[true],
            Capacity::SpotWithFallback => &[true, false],
        };
        // One subnet alone is what "all" means then.
        let single = if subnets > 1 { subnets } else { 0 };
        let of_kind = |is_spot: bool| {
            let each = (0..single).map(Some);
            std::iter::once(None).chain(each).map(move |subnet| Place { is_spot, subnet })
        };
        Self { all: kinds.iter().copied().flat_map(of_kind).collect(), next: 0 }
    }

    fn current(&self) -> Place {
        self.all[self.next]
    }

    /// Moves on; false when every place was tried, and the first one is next.
    fn advance(&mut self) -> bool {
        self.next = (self.next + 1) % self.all.len();
        self.next != 0
    }
}

impl Order<'_> {
    fn cluster(&self) -> Cluster<'_> {
        Cluster { aws: self.aws, name: &self.settings.cluster }
    }

    fn input(&self, definition: &str, place: Place) -> Result<Value> {
        let settings = self.settings;
        let subnets = match place.subnet {
            Some(index) => &settings.subnets[index..=index],
            None => &settings.subnets[..],
        };
        let network = json!({
            "subnets": subnets,
            "securityGroups": settings.security_groups,
            "assignPublicIp": if settings.assign_public_ip { "ENABLED" } else { "DISABLED" },
        });
        let mut input = json!({
            "taskDefinition": definition,
            "count": 1,
            // Of this very launch: repeated with it, and never used again.
            "clientToken": sandbox_agent_client::random_hex(32)?,
            "startedBy": self.config.started_by,
            "platformVersion": self.config.platform_version,
            "networkConfiguration": { "awsvpcConfiguration": network },
            "overrides": self.overrides,
            "tags": tag_list(&self.tags),
        });
        match place.is_spot {
            true => input["capacityProviderStrategy"] = json!([{ "capacityProvider": "FARGATE_SPOT", "weight": 1 }]),
            false => input["launchType"] = "FARGATE".into(),
        }
        Ok(input)
    }

    /// Launches a task. `made` knows at every moment what there is to take back.
    ///
    /// # Errors
    /// `Exhausted` where nothing has room until the deadline; what AWS refuses with.
    pub(crate) async fn launch(&self, made: &mut Made, is_gone: impl Fn() -> bool, deadline: Instant) -> Result<Task> {
        let mut places = Places::new(self.capacity, self.settings.subnets.len());
        let (mut was_forgotten, mut round) = (false, 0);
        loop {
            let definition = self.definitions.get(self.aws, &self.recipe, deadline).await?;
            if is_gone() {
                return Err(SandboxError::create("nobody waits for the sandbox any more"));
            }
            let input = self.input(&definition, places.current())?;
            made.unclear = Some(input.clone());
            let launched = self.cluster().run(input, deadline).await;
            if !launched.as_ref().is_err_and(CallError::is_unclear) {
                made.unclear = None;
            }
            let (class, error) = match launched {
                Ok(Launch { mut tasks, failures }) => match tasks.pop() {
                    Some(task) => {
                        made.arn = Some(task.task_arn.clone());
                        return Ok(task);
                    }
                    None => refused(failures.first()),
                },
                Err(error) if !was_forgotten && is_stale(&error) => {
                    was_forgotten = true;
                    self.definitions.forget(&definition);
                    continue;
                }
                Err(error) => (error.class(), error.into()),
            };
            let wait = match class {
                Class::Capacity if places.advance() => Duration::ZERO,
                Class::Capacity | Class::Throttle => {
                    round += 1;
                    backoff(round + 1)
                }
                _ => return Err(error),
            };
            if Instant::now() + wait >= deadline {
                return Err(error.with_help("try later, another region, more subnets, or capacity = \"on_demand\""));
            }
            tracing::debug!(?class, round, "a task is launched again");
            tokio::time::sleep(wait).await;
        }
    }
}

/// A definition that was deregistered since it was found.
fn is_stale(error: &CallError) -> bool {
    let text = error.message().to_ascii_lowercase();
    error.class() == Class::Fatal
        && text.contains("taskdefinition")
        && (text.contains("inactive") || text.contains("not found"))
}

/// An answer without a task.
fn refused(failed: Option<&Failed>) -> (Class, SandboxError) {
    let Some(failed) = failed else {
        return (
            Class::Fatal,
            SandboxError::create("RunTask: AWS made no task and did not say why").with_provider(NAME),
        );
    };
    let text = [failed.reason.as_str(), failed.detail.as_str()].join(" ");
    let text = crate::aws::one_line(text.trim());
    let class = by_words(&text).unwrap_or(Class::Fatal);
    let error = match class {
        Class::Fatal => SandboxError::create(format!("RunTask: {text}")),
        _ => SandboxError::exhausted(format!("RunTask: {text}")),
    };
    (class, error.with_provider(NAME))
}

impl Made {
    /// Stops what was made, also where it is not known whether anything was.
    ///
    /// # Errors
    /// What AWS refuses with: then something may be left, until its time is over or a sweep finds it.
    pub(crate) async fn take_back(&mut self, aws: &Aws, cluster: &str) -> Result<()> {
        let deadline = Instant::now() + TAKE_BACK_LIMIT;
        let cluster = Cluster { aws, name: cluster };
        if let Some(input) = self.unclear.take() {
            // The same token: AWS makes nothing twice, and says what the first one made.
            let launched = cluster.run(input, deadline).await.map_err(SandboxError::from)?;
            self.arn = launched.tasks.first().map(|task| task.task_arn.clone()).or_else(|| self.arn.take());
        }
        if let Some(arn) = self.arn.take() {
            cluster.stop(&arn, "the sandbox was not needed", deadline).await.map_err(SandboxError::from)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use sandbox_core::ErrorKind;
    use serde_json::{Value, json};
    use tokio::time::{Duration, Instant};

    use super::{Made, Order, Place, Places};
    use crate::{
        aws::{
            Aws, Environment, Task,
            testing::{Asked, Stub},
        },
        config::Capacity,
        definition::{Definitions, Recipe},
        settings::Settings,
    };

    #[test]
    fn every_place_is_tried_and_spot_before_on_demand() {
        let place = |is_spot, subnet| Place { is_spot, subnet };
        let mut places = Places::new(Capacity::SpotWithFallback, 2);
        let mut tried = vec![places.current()];
        while places.advance() {
            tried.push(places.current());
        }
        let kinds = [true, false];
        let expected: Vec<_> =
            kinds.iter().flat_map(|spot| [None, Some(0), Some(1)].map(|subnet| place(*spot, subnet))).collect();
        assert_eq!(tried, expected);
        assert_eq!(places.current(), expected[0]);
        assert_eq!(Places::new(Capacity::OnDemand, 1).all, [place(false, None)]);
    }

    /// Launches against a service whose RunTask answers so for each number of a call.
    async fn launch(
        answer: impl Fn(usize, &Value) -> (u16, Value) + Send + Sync + 'static,
        capacity: Capacity,
        limit: Duration,
    ) -> (sandbox_core::Result<Task>, Made, Vec<Value>, Stub, Aws) {
        let count = AtomicUsize::new(0);
        let stub = Stub::start(move |asked: &Asked| {
            let input: Value = serde_json::from_str(&asked.body).unwrap();
            let (status, body) = match asked.header("x-amz-target").unwrap().rsplit('.').next().unwrap() {
                "DescribeTaskDefinition" => (200, json!({"taskDefinition": {"taskDefinitionArn": "d"}})),
                "RunTask" => answer(count.fetch_add(1, Ordering::Relaxed), &input),
                "StopTask" => (200, json!({})),
                other => panic!("{other}"),
            };
            (status, if body.is_null() { String::new() } else { body.to_string() })
        })
        .await;
        let config = stub.config(&format!("L{}", stub.url()));
        let settings = Settings {
            cluster: "c".into(),
            subnets: vec!["s0".into(), "s1".into()],
            security_groups: vec!["g".into()],
            assign_public_ip: false,
            execution_role_arn: "r".into(),
            task_role_arn: None,
            log_group: None,
            s3_bucket: None,
            sidecar_image: Some("i".into()),
        };
        let aws = Aws::new(&config, Environment::default()).unwrap();
        let definitions = Definitions::default();
        let order = Order {
            aws: &aws,
            config: &config,
            settings: &settings,
            definitions: &definitions,
            recipe: Recipe::plain(&config, &settings),
            capacity,
            overrides: json!({}),
            tags: BTreeMap::new(),
        };
        let mut made = Made::default();
        let launched = order.launch(&mut made, || false, Instant::now() + limit).await;
        (launched, made, inputs(&stub, "RunTask"), stub, aws)
    }

    fn inputs(stub: &Stub, action: &str) -> Vec<Value> {
        let asked = stub.asked();
        let of_action = asked.iter().filter(|asked| asked.header("x-amz-target").unwrap().ends_with(action));
        of_action.map(|asked| serde_json::from_str(&asked.body).unwrap()).collect()
    }

    fn task() -> (u16, Value) {
        (200, json!({"tasks": [{"taskArn": "arn:t/c/1"}], "failures": []}))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn where_there_is_no_room_the_next_place_is_tried_each_with_a_token_of_its_own() {
        let no_room = |call, _: &Value| match call {
            0 => (
                200,
                json!({"tasks": [], "failures": [{"reason": "Capacity is unavailable at this time. Please try again later"}]}),
            ),
            1 => (400, json!({"__type": "InvalidParameterException", "message": "Capacity is unavailable"})),
            2 => (200, json!({"tasks": [], "failures": [{"reason": "RESOURCE:ENI"}]})),
            _ => task(),
        };
        let (launched, _, asked, ..) = launch(no_room, Capacity::SpotWithFallback, LONG).await;
        assert_eq!(launched.unwrap().task_arn, "arn:t/c/1");
        let subnets: Vec<_> =
            asked.iter().map(|input| &input["networkConfiguration"]["awsvpcConfiguration"]["subnets"]).collect();
        assert_eq!(subnets, [&json!(["s0", "s1"]), &json!(["s0"]), &json!(["s1"]), &json!(["s0", "s1"])]);
        let kinds: Vec<_> = asked.iter().map(|input| input.get("launchType").is_none()).collect();
        assert_eq!(kinds, [true, true, true, false], "spot first");
        let mut tokens: Vec<_> = asked.iter().map(|input| input["clientToken"].as_str().unwrap()).collect();
        tokens.dedup();
        assert!(tokens.len() == 4 && tokens.iter().all(|token| token.len() <= 64));
    }

    #[tokio::test]
    async fn f06_throttling_by_words_and_a_lost_answer_are_repeated_with_the_same_token() {
        let bumpy = |call, _: &Value| match call {
            0 => (
                400,
                json!({"__type": "InvalidParameterException", "message": "Rate exceeded (ErrorCode: Throttling)"}),
            ),
            1 => (500, Value::Null),
            2 => (0, Value::Null),
            _ => task(),
        };
        let (launched, _, asked, ..) = launch(bumpy, Capacity::OnDemand, LONG).await;
        launched.unwrap();
        assert_eq!(asked.len(), 4);
        assert!(asked.iter().all(|input| input["clientToken"] == asked[0]["clientToken"]));
    }

    #[tokio::test]
    async fn what_is_refused_for_good_is_told_at_once() {
        let refuse =
            |_, _: &Value| (200, json!({"tasks": [], "failures": [{"reason": "MISSING", "detail": "no cluster"}]}));
        let (launched, _, asked, ..) = launch(refuse, Capacity::OnDemand, LONG).await;
        let error = launched.unwrap_err();
        assert_eq!((error.kind(), asked.len()), (ErrorKind::Create, 1));
        assert!(error.to_string().contains("MISSING no cluster"), "{error}");
        let never = |_, _: &Value| (200, json!({"tasks": [], "failures": [{"reason": "Capacity is unavailable"}]}));
        let (launched, ..) = launch(never, Capacity::OnDemand, Duration::from_millis(900)).await;
        assert_eq!(launched.unwrap_err().kind(), ErrorKind::Exhausted);
    }

    #[tokio::test]
    async fn a_task_that_may_have_been_made_is_found_by_its_token_and_stopped() {
        // Made, but for so long nobody hears of it.
        let begin = std::time::Instant::now();
        let lost = move |_, _: &Value| match begin.elapsed() < Duration::from_secs(2) {
            true => (500, Value::Null),
            false => task(),
        };
        let (launched, mut made, _, stub, aws) = launch(lost, Capacity::OnDemand, Duration::from_millis(500)).await;
        assert_eq!(launched.unwrap_err().kind(), ErrorKind::Unavailable);
        made.take_back(&aws, "c").await.unwrap();
        let runs = inputs(&stub, "RunTask");
        assert!(runs.len() > 1 && runs.iter().all(|input| input["clientToken"] == runs[0]["clientToken"]));
        assert_eq!(inputs(&stub, "StopTask")[0]["task"], "arn:t/c/1");
        assert!(made.arn.is_none());
    }
}

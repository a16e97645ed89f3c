//! Task definitions: one for each image with its roles. What differs between sandboxes goes along with each launch.
//!
//! The family's name is a hash of the contents, so that asking for it is the cache that all processes share.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{Result, SandboxError, tracing};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    aws::{Aws, Bucket, Class, backoff, tag_list},
    config::{Architecture, FargateConfig, TransportKind},
    error::NAME,
    key::sha256,
    scripts::{bootstrap_script, relay_script, ssh_script},
    settings::Settings,
    storage::{self, Mount},
};

/// The containers.
pub(crate) const MAIN: &str = "main";
pub(crate) const SSH: &str = "ssh";
const AGENT: &str = "agent";
const RELAY: &str = "s3";
/// The volume that they share, and where.
const VOLUME: &str = "sandbox";
pub(crate) const FOLDER: &str = "/.sandbox";
/// The agent's file in it.
pub(crate) const AGENT_FILE: &str = "/.sandbox/agent";
/// The agent's socket in it.
pub(crate) const SOCKET: &str = "/.sandbox/agent.sock";

/// What the agent is told, and the hash of the token that it demands.
pub(crate) const CONFIG_VARIABLE: &str = "SANDBOX_AGENT_CONFIG";
pub(crate) const TOKEN_VARIABLE: &str = "SANDBOX_AGENT_TOKEN_SHA256";
/// Where an image fetches the agent, and what it must find there.
pub(crate) const URL_VARIABLE: &str = "SANDBOX_AGENT_URL";
pub(crate) const SHA256_VARIABLE: &str = "SANDBOX_AGENT_SHA256";
/// The key with which the SSH server is entered.
pub(crate) const SSH_VARIABLE: &str = "SANDBOX_SSH_PUBLIC_KEY";

/// Digits of the hash in the family's name.
const HASH_DIGITS: usize = 32;

/// The smallest size: each launch brings its own.
const CPU: &str = "256";
const MEMORY: &str = "512";

/// What a definition is made of.
pub(crate) struct Recipe<'a> {
    pub(crate) config: &'a FargateConfig,
    pub(crate) settings: &'a Settings,
    pub(crate) region: &'a str,
    pub(crate) image: &'a str,
    /// Ports that are published on the task's own address.
    pub(crate) ports: &'a [u16],
    /// By way of which large files move.
    pub(crate) bucket: Option<&'a Bucket>,
    /// File systems that the sandbox sees.
    pub(crate) mounts: &'a [Mount],
}

#[cfg(test)]
impl<'a> Recipe<'a> {
    /// With an image and nothing else.
    pub(crate) fn plain(config: &'a FargateConfig, settings: &'a Settings) -> Self {
        Self { config, settings, region: "r", image: "a", ports: &[], bucket: None, mounts: &[] }
    }
}

impl Recipe<'_> {
    /// The definition, but for its name and tags.
    fn contents(&self) -> Value {
        let (config, settings) = (self.config, self.settings);
        let mut containers = vec![self.main()];
        // Without that image the sandbox's own fetches the agent.
        if let Some(sidecar) = settings.sidecar_image.as_deref() {
            containers.insert(0, self.agent(sidecar));
            if config.transport == TransportKind::Ssh {
                containers.push(self.ssh(sidecar));
            }
            containers.extend(self.bucket.map(|bucket| self.relay(sidecar, bucket)));
        }
        let architecture = match config.architecture {
            Architecture::X86_64 => "X86_64",
            Architecture::Aarch64 => "ARM64",
        };
        let mut volumes = vec![json!({ "name": VOLUME })];
        volumes.extend(storage::volumes(self.mounts));
        let mut contents = json!({
            "requiresCompatibilities": ["FARGATE"],
            "networkMode": "awsvpc",
            "cpu": CPU,
            "memory": MEMORY,
            "runtimePlatform": { "operatingSystemFamily": "LINUX", "cpuArchitecture": architecture },
            "executionRoleArn": settings.execution_role_arn,
            "volumes": volumes,
            "containerDefinitions": containers,
        });
        if let Some(role) = &settings.task_role_arn {
            contents["taskRoleArn"] = role.as_str().into();
        }
        contents
    }

    /// What any container has.
    fn container(&self, name: &str, image: &str, is_essential: bool, may_write: bool) -> Value {
        let mut container = json!({
            "name": name,
            "image": image,
            "essential": is_essential,
            // What the image says is not what brings and serves the agent.
            "user": "0:0",
            "mountPoints": [{ "sourceVolume": VOLUME, "containerPath": FOLDER, "readOnly": !may_write }],
        });
        if let Some(group) = &self.settings.log_group {
            let options =
                json!({ "awslogs-group": group, "awslogs-region": self.region, "awslogs-stream-prefix": "sandbox" });
            container["logConfiguration"] = json!({ "logDriver": "awslogs", "options": options });
        }
        container
    }

    /// Puts the agent into the volume, and ends.
    fn agent(&self, image: &str) -> Value {
        let mut container = self.container(AGENT, image, false, true);
        let from = &self.config.sidecar.agent_path;
        let script = format!(
            "set -eu\ncp {from} {AGENT_FILE}.new\nchmod 0755 {AGENT_FILE}.new\nmv {AGENT_FILE}.new {AGENT_FILE}\n"
        );
        container["entryPoint"] = json!(["sh", "-c"]);
        container["command"] = json!([script]);
        container
    }

    /// Starts beside the others: nothing waits for a health check, which ECS does every five seconds at best.
    fn ssh(&self, image: &str) -> Value {
        let mut container = self.container(SSH, image, true, false);
        let port = self.config.sidecar.ssh_port;
        container["entryPoint"] = json!(["sh", "-c"]);
        container["command"] = json!([ssh_script(port)]);
        container["portMappings"] = json!([{ "containerPort": port, "protocol": "tcp" }]);
        container
    }

    /// The way to the bucket. A sandbox lives on without it.
    fn relay(&self, image: &str, bucket: &Bucket) -> Value {
        let mut container = self.container(RELAY, image, false, true);
        container["entryPoint"] = json!(["sh", "-c"]);
        container["command"] = json!([relay_script(bucket)]);
        container
    }

    /// The sandbox: the agent serves whatever the image's entry point is.
    fn main(&self) -> Value {
        let mut container = self.container(MAIN, self.image, true, true);
        if let Some(points) = container["mountPoints"].as_array_mut() {
            points.extend(storage::mount_points(self.mounts));
        }
        let config = self.config;
        let door = format!("0.0.0.0:{}", config.agent_port);
        let listen = match config.transport {
            TransportKind::Ssh => ["--listen-unix", SOCKET],
            TransportKind::Direct => ["--listen-tcp", &door],
        };
        let told = ["--config-env", CONFIG_VARIABLE, "--token-sha256-env", TOKEN_VARIABLE];
        let arguments = ["serve"].iter().chain(&listen).chain(&told).copied();
        if self.settings.sidecar_image.is_some() {
            container["entryPoint"] = json!([AGENT_FILE]);
            container["command"] = arguments.collect();
            container["dependsOn"] = json!([{ "containerName": AGENT, "condition": "SUCCESS" }]);
        } else {
            // What follows the script are its own arguments, behind its name.
            let script = json!([bootstrap_script(), "sandbox"]);
            container["entryPoint"] = json!(["sh", "-c"]);
            container["command"] =
                script.as_array().into_iter().flatten().cloned().chain(arguments.map(Value::from)).collect();
        }
        if config.transport == TransportKind::Direct {
            let ports = std::iter::once(&config.agent_port).chain(self.ports);
            container["portMappings"] = ports.map(|port| json!({ "containerPort": port, "protocol": "tcp" })).collect();
        }
        if let Some(secret) = &config.image_pull_secret_arn {
            container["repositoryCredentials"] = json!({ "credentialsParameter": secret });
        }
        container
    }
}

/// The family's name: the same contents have the same one.
fn family(prefix: &str, contents: &Value) -> String {
    // Keys of objects are sorted.
    let hash = sha256(contents.to_string().as_bytes());
    format!("{prefix}-{}", &hash[..HASH_DIGITS])
}

/// The definitions that this provider knows, each looked for once.
#[derive(Default)]
pub(crate) struct Definitions(Mutex<HashMap<String, Arc<OnceCell<String>>>>);

impl Definitions {
    fn cell(&self, key: String) -> Arc<OnceCell<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone()
    }

    /// The ARN of a definition with these contents; registered if nobody has done so yet.
    ///
    /// # Errors
    /// What AWS refuses with.
    pub(crate) async fn get(&self, aws: &Aws, recipe: &Recipe<'_>, deadline: Instant) -> Result<String> {
        let contents = recipe.contents();
        let family = family(&recipe.config.family_prefix, &contents);
        let cell = self.cell(format!("{}/{family}", aws.region));
        let arn = cell.get_or_try_init(|| find_or_register(aws, &family, contents, &recipe.config.tags, deadline));
        arn.await.cloned()
    }

    /// Forgets a definition that AWS does not have any more.
    pub(crate) fn forget(&self, arn: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, cell| cell.get().is_none_or(|known| known != arn));
    }
}

async fn find_or_register(
    aws: &Aws,
    family: &str,
    mut contents: Value,
    tags: &std::collections::BTreeMap<String, String>,
    deadline: Instant,
) -> Result<String> {
    contents["family"] = family.into();
    if !tags.is_empty() {
        contents["tags"] = tag_list(tags);
    }
    for attempt in 0.. {
        // Whoever registers at the same moment as another process finds what that one has made.
        if let Some(found) = aws.describe_definition(family, deadline).await? {
            return Ok(found.task_definition_arn);
        }
        let error = match aws.register_definition(&contents, deadline).await {
            Ok(made) => {
                tracing::debug!("a task definition was registered");
                return Ok(made.task_definition_arn);
            }
            Err(error) => error,
        };
        let wait = backoff(attempt);
        if !matches!(error.class(), Class::Throttle | Class::Transient) || Instant::now() + wait >= deadline {
            return Err(error.into());
        }
        tokio::time::sleep(wait).await;
    }
    Err(SandboxError::internal("no tries are left").with_provider(NAME))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use sandbox_core::ErrorKind;
    use serde_json::{Value, json};
    use tokio::time::{Duration, Instant};

    use super::{Definitions, Recipe, family};
    use crate::{
        aws::testing::Stub,
        config::{FargateConfig, TransportKind},
        settings::Settings,
    };

    fn settings() -> Settings {
        Settings {
            cluster: "c".into(),
            subnets: vec!["s".into()],
            security_groups: Vec::new(),
            assign_public_ip: false,
            execution_role_arn: "arn:aws:iam::1:role/exec".into(),
            task_role_arn: None,
            log_group: None,
            s3_bucket: None,
            sidecar_image: Some("sidecar:1".into()),
        }
    }

    fn contents(config: &FargateConfig, settings: &Settings, image: &str, ports: &[u16]) -> Value {
        Recipe { image, ports, ..Recipe::plain(config, settings) }.contents()
    }

    #[test]
    fn the_name_depends_on_the_contents_and_on_nothing_else() {
        let (config, base) = (FargateConfig::default(), settings());
        let name = |config: &FargateConfig, settings: &Settings, image: &str| {
            family("p", &contents(config, settings, image, &[]))
        };
        let first = name(&config, &base, "a:1");
        assert!(first.starts_with("p-") && first.len() == 34, "{first}");
        // What goes along with a launch does not count.
        let other = FargateConfig { cpu: 4.0, ttl_s: None, ready_timeout_s: 9.0, ..FargateConfig::default() };
        assert_eq!(first, name(&other, &base, "a:1"));
        assert_ne!(first, name(&config, &base, "a:2"));
        assert_ne!(first, name(&config, &Settings { task_role_arn: Some("r".into()), ..base.clone() }, "a:1"));
        let direct = FargateConfig { transport: TransportKind::Direct, ..FargateConfig::default() };
        assert_ne!(first, name(&direct, &base, "a:1"));
        // Known from outside: a change of this line makes every definition anew.
        assert_eq!(first, name(&FargateConfig::default(), &settings(), "a:1"));
    }

    #[test]
    fn the_sandboxed_code_gets_no_role_and_the_image_no_say() {
        let contents = contents(&FargateConfig::default(), &settings(), "a:1", &[80]);
        assert!(contents.get("taskRoleArn").is_none());
        let containers = contents["containerDefinitions"].as_array().unwrap();
        let named = |name: &str| containers.iter().find(|one| one["name"] == name).unwrap();
        let main = named("main");
        assert_eq!(main["entryPoint"], json!(["/.sandbox/agent"]));
        assert_eq!(main["command"][1], "--listen-unix");
        assert_eq!((&main["essential"], &main["user"]), (&json!(true), &json!("0:0")));
        assert!(main.get("portMappings").is_none(), "nothing of it listens on the network");
        assert_eq!(named("agent")["essential"], false);
        let ssh = named("ssh");
        assert_eq!(ssh["portMappings"][0]["containerPort"], 52222);
        assert_eq!(ssh["mountPoints"][0]["readOnly"], true);
        for line in ["AllowTcpForwarding local", "restrict,port-forwarding $SANDBOX_SSH_PUBLIC_KEY", "PermitTTY no"] {
            assert!(ssh["command"][0].as_str().unwrap().contains(line), "{line}");
        }
    }

    #[test]
    fn direct_has_no_ssh_server_and_publishes_its_ports() {
        let config = FargateConfig { transport: TransportKind::Direct, ..FargateConfig::default() };
        let contents = contents(&config, &settings(), "a:1", &[80]);
        let containers = contents["containerDefinitions"].as_array().unwrap();
        assert_eq!(containers.len(), 2);
        let ports: Vec<_> = containers[1]["portMappings"].as_array().unwrap().iter().collect();
        assert_eq!((&ports[0]["containerPort"], &ports[1]["containerPort"]), (&json!(52223), &json!(80)));
        assert_eq!(containers[1]["command"][2], "0.0.0.0:52223");
    }

    #[test]
    fn without_a_sidecar_the_image_fetches_the_agent_and_is_the_only_container() {
        let config = FargateConfig { transport: TransportKind::Direct, ..FargateConfig::default() };
        let contents = contents(&config, &Settings { sidecar_image: None, ..settings() }, "a:1", &[]);
        let containers = contents["containerDefinitions"].as_array().unwrap();
        assert_eq!((containers.len(), &containers[0]["entryPoint"]), (1, &json!(["sh", "-c"])));
        assert!(containers[0].get("dependsOn").is_none());
        let command = containers[0]["command"].as_array().unwrap();
        assert_eq!(
            (&command[1], &command[2], &command[4]),
            (&json!("sandbox"), &json!("serve"), &json!("0.0.0.0:52223"))
        );
    }

    /// A registry that answers the first registrations with a refusal, after which another process has made it.
    async fn registry(refusals: usize) -> Stub {
        let state = Mutex::new((refusals, None::<String>));
        Stub::start(move |asked| {
            let (refusals, made) = &mut *state.lock().unwrap();
            let input: Value = serde_json::from_str(&asked.body).unwrap();
            let found =
                |name: &str| json!({"taskDefinition": {"taskDefinitionArn": name, "status": "ACTIVE"}}).to_string();
            match asked.header("x-amz-target").unwrap().rsplit('.').next().unwrap() {
                "DescribeTaskDefinition" => match made {
                    Some(name) => (200, found(name)),
                    None => {
                        (400, r#"{"__type":"ClientException","message":"Unable to describe task definition."}"#.into())
                    }
                },
                "RegisterTaskDefinition" if *refusals > 0 => {
                    *refusals -= 1;
                    *made = Some("theirs".into());
                    let text = "Too many concurrent attempts to create a new revision of the specified family.";
                    (400, json!({"__type": "ClientException", "message": text}).to_string())
                }
                "RegisterTaskDefinition" => {
                    *made = Some(input["family"].as_str().unwrap().to_owned());
                    (200, found("ours"))
                }
                other => panic!("{other}"),
            }
        })
        .await
    }

    fn count(stub: &Stub, action: &str) -> usize {
        stub.asked().iter().filter(|asked| asked.header("x-amz-target").unwrap().ends_with(action)).count()
    }

    #[tokio::test]
    async fn many_at_once_register_one_definition_and_later_ones_ask_nobody() {
        let stub = registry(0).await;
        let (aws, all, config, settings) =
            (stub.aws("A"), Definitions::default(), FargateConfig::default(), settings());
        let recipe = Recipe::plain(&config, &settings);
        let deadline = Instant::now() + Duration::from_secs(30);
        let one = || all.get(&aws, &recipe, deadline);
        let (a, b, c) = tokio::join!(one(), one(), one());
        assert_eq!((a.unwrap().as_str(), b.unwrap().as_str(), c.unwrap().as_str()), ("ours", "ours", "ours"));
        assert_eq!((count(&stub, "DescribeTaskDefinition"), count(&stub, "RegisterTaskDefinition")), (1, 1));
        all.forget("ours");
        one().await.unwrap();
        assert_eq!(count(&stub, "DescribeTaskDefinition"), 2, "looked for again");
    }

    #[tokio::test]
    async fn whoever_is_refused_because_another_registers_takes_what_that_one_made() {
        let stub = registry(1).await;
        let (aws, all, config, settings) =
            (stub.aws("A"), Definitions::default(), FargateConfig::default(), settings());
        let recipe = Recipe::plain(&config, &settings);
        let found = all.get(&aws, &recipe, Instant::now() + Duration::from_secs(30)).await.unwrap();
        assert_eq!((found.as_str(), count(&stub, "RegisterTaskDefinition")), ("theirs", 1));
    }

    #[tokio::test]
    async fn a_refusal_is_told_and_not_kept() {
        let stub = Stub::start(|_| (400, r#"{"__type":"AccessDeniedException","message":"no"}"#.into())).await;
        let (aws, all, config, settings) =
            (stub.aws("A"), Definitions::default(), FargateConfig::default(), settings());
        let recipe = Recipe::plain(&config, &settings);
        for tries in 1..3 {
            let error = all.get(&aws, &recipe, Instant::now() + Duration::from_secs(30)).await.unwrap_err();
            assert_eq!((error.kind(), stub.asked().len()), (ErrorKind::PermissionDenied, tries));
        }
    }
}

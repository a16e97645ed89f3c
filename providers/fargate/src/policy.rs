//! What these settings need of an AWS account: rights and open ports, and nothing beyond.

use std::fmt;

use sandbox_core::Result;
use serde_json::{Value, json};

use crate::{
    aws::partition,
    config::{Address, FargateConfig, KeySource, TransportKind},
};

/// The rights and network rules that some settings need. `Display` is one JSON document; nothing is asked of AWS.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Needs {
    /// The policy of whoever makes sandboxes.
    pub orchestrator: Value,
    /// The policy of the role with which AWS pulls images and writes logs.
    pub execution_role: Value,
    /// The policy of the sandboxed code: nothing, but for file systems that ask for its rights.
    pub task_role: Value,
    /// Which ports must be open, and to whom.
    pub network: Value,
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = json!({
            "orchestrator": self.orchestrator,
            "execution_role": self.execution_role,
            "task_role": self.task_role,
            "network": self.network,
        });
        f.write_str(&serde_json::to_string_pretty(&all).map_err(|_| fmt::Error)?)
    }
}

/// What these settings need, for sandboxes of these images. Where the settings do not say which account, region or
/// cluster, a star stands for it.
///
/// # Errors
/// `InvalidInput`, naming a setting that cannot be meant.
pub fn needs(config: &FargateConfig, images: &[String]) -> Result<Needs> {
    config.validate()?;
    let place = Place::of(config);
    let sidecar = config.sidecar.image.iter();
    let all_images: Vec<&str> = sidecar.chain(images).map(String::as_str).collect();
    Ok(Needs {
        orchestrator: policy(orchestrator(config, &place)),
        execution_role: policy(execution_role(config, &place, &all_images)),
        task_role: policy(task_role(config, &place)),
        network: network(config, &place),
    })
}

struct Place {
    partition: &'static str,
    region: String,
    account: String,
    cluster: String,
}

impl Place {
    fn of(config: &FargateConfig) -> Self {
        let region = config.region.clone();
        let cluster = config.cluster.as_deref().unwrap_or("*");
        let account = |arn: &String| arn.split(':').nth(4).filter(|account| !account.is_empty()).map(str::to_owned);
        let arn = config.execution_role_arn.as_ref().or(config.cluster.as_ref());
        Self {
            partition: region.as_deref().map_or("aws", partition),
            account: arn.and_then(account).unwrap_or_else(|| "*".to_owned()),
            // Of an ARN the last part.
            cluster: cluster.rsplit('/').next().unwrap_or("*").to_owned(),
            region: region.unwrap_or_else(|| "*".to_owned()),
        }
    }

    fn arn(&self, service: &str, resource: &str) -> String {
        format!("arn:{}:{service}:{}:{}:{resource}", self.partition, self.region, self.account)
    }
}

fn policy(statements: Vec<Value>) -> Value {
    json!({ "Version": "2012-10-17", "Statement": statements })
}

fn allow(actions: &[&str], resources: impl Into<Value>) -> Value {
    json!({ "Effect": "Allow", "Action": actions, "Resource": resources.into() })
}

fn allow_if(actions: &[&str], resources: impl Into<Value>, condition: Value) -> Value {
    let mut statement = allow(actions, resources);
    statement["Condition"] = condition;
    statement
}

fn orchestrator(config: &FargateConfig, place: &Place) -> Vec<Value> {
    let cluster = place.arn("ecs", &format!("cluster/{}", place.cluster));
    let tasks = place.arn("ecs", &format!("task/{}/*", place.cluster));
    let definitions = place.arn("ecs", &format!("task-definition/{}-*", config.family_prefix));
    let in_cluster = || json!({ "ArnEquals": { "ecs:cluster": cluster } });
    let mut statements = vec![
        // These two know no resource.
        allow(&["ecs:RegisterTaskDefinition", "ecs:DescribeTaskDefinition"], "*"),
        allow_if(&["ecs:RunTask"], definitions.as_str(), in_cluster()),
        allow_if(&["ecs:ListTasks"], "*", in_cluster()),
        allow(&["ecs:DescribeTasks", "ecs:StopTask", "ecs:TagResource"], tasks.as_str()),
    ];
    if !config.tags.is_empty() {
        let condition = json!({ "StringEquals": { "ecs:CreateAction": "RegisterTaskDefinition" } });
        statements.push(allow_if(&["ecs:TagResource"], definitions.as_str(), condition));
    }
    let roles: Vec<&str> =
        [&config.execution_role_arn, &config.task_role_arn].into_iter().flatten().map(String::as_str).collect();
    let to_tasks = json!({ "StringEquals": { "iam:PassedToService": "ecs-tasks.amazonaws.com" } });
    statements.push(match roles.is_empty() {
        true => allow_if(&["iam:PassRole"], format!("arn:{}:iam::{}:role/*", place.partition, place.account), to_tasks),
        false => allow_if(&["iam:PassRole"], json!(roles), to_tasks),
    });
    if config.address == Address::Public {
        statements.push(allow(&["ec2:DescribeNetworkInterfaces"], "*"));
    }
    if let Some(name) = &config.settings_parameter {
        let resource = format!("parameter/{}", name.trim_start_matches('/'));
        statements.push(allow(&["ssm:GetParameter"], place.arn("ssm", &resource)));
    }
    if let Some(bucket) = &config.s3_bucket {
        let objects = format!("arn:{}:s3:::{bucket}/{}/*", place.partition, config.s3_prefix);
        statements.push(allow(&["s3:PutObject", "s3:GetObject", "s3:DeleteObject"], objects));
    }
    statements.extend(images(config, place));
    if let KeySource::SecretArn(arn) = &config.key {
        statements.push(allow(&["secretsmanager:GetSecretValue"], arn.as_str()));
    }
    statements
}

/// What copying and building images needs.
fn images(config: &FargateConfig, place: &Place) -> Vec<Value> {
    let (Some(repository), Some(project)) = (&config.ecr_repository, &config.build.project) else { return Vec::new() };
    let name = repository.split_once(".dkr.ecr.").and_then(|(_, rest)| rest.split_once('/'));
    let name = name.map_or(repository.as_str(), |(_, name)| name);
    let builds = ["codebuild:StartBuild", "codebuild:BatchGetBuilds", "codebuild:StopBuild"];
    vec![
        allow(&["ecr:DescribeRepositories", "ecr:DescribeImages"], place.arn("ecr", &format!("repository/{name}"))),
        allow(&builds, place.arn("codebuild", &format!("project/{project}"))),
        // What a build says.
        allow(&["logs:GetLogEvents"], place.arn("logs", &format!("log-group:/aws/codebuild/{project}:log-stream:*"))),
    ]
}

fn execution_role(config: &FargateConfig, place: &Place, images: &[&str]) -> Vec<Value> {
    let mut statements = Vec::new();
    let mut repositories: Vec<String> = images.iter().filter_map(|image| repository(image, place.partition)).collect();
    if let Some(own) = config.ecr_repository.as_ref().filter(|_| config.build.project.is_some()) {
        let known = repository(own, place.partition);
        repositories.push(known.unwrap_or_else(|| place.arn("ecr", &format!("repository/{own}"))));
    }
    repositories.sort();
    repositories.dedup();
    if !repositories.is_empty() {
        statements.push(allow(&["ecr:GetAuthorizationToken"], "*"));
        statements.push(allow(&["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"], json!(repositories)));
    }
    if let Some(group) = &config.log_group {
        let streams = place.arn("logs", &format!("log-group:{group}:log-stream:sandbox/*"));
        statements.push(allow(&["logs:CreateLogStream", "logs:PutLogEvents"], streams));
    }
    if let Some(secret) = &config.image_pull_secret_arn {
        statements.push(allow(&["secretsmanager:GetSecretValue"], secret.as_str()));
    }
    statements
}

/// The file systems whose setting `iam` is on.
fn task_role(config: &FargateConfig, place: &Place) -> Vec<Value> {
    let systems = config.volumes.values().chain(&config.shared_storage).filter(|system| system.iam);
    let mut statements: Vec<Value> = systems
        .map(|system| {
            let actions = ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"];
            let resource = place.arn("elasticfilesystem", &format!("file-system/{}", system.file_system_id));
            match &system.access_point_id {
                None => allow(&actions, resource),
                Some(point) => {
                    let point = place.arn("elasticfilesystem", &format!("access-point/{point}"));
                    let condition = json!({ "StringEquals": { "elasticfilesystem:AccessPointArn": point } });
                    allow_if(&actions, resource, condition)
                }
            }
        })
        .collect();
    statements.dedup();
    statements
}

/// The ARN of the repository of an image, where it is one of AWS's own registry.
fn repository(image: &str, partition: &str) -> Option<String> {
    let (host, path) = image.split_once('/')?;
    let mut parts = host.split('.');
    let (account, region) = (parts.next()?, parts.nth(2)?);
    if !host.contains(".dkr.ecr.") || !account.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let name = path.split(['@', ':']).next()?;
    Some(format!("arn:{partition}:ecr:{region}:{account}:repository/{name}"))
}

fn network(config: &FargateConfig, place: &Place) -> Value {
    let (port, who) = (config.door(), "whoever makes sandboxes");
    let mut inbound = vec![json!({ "protocol": "tcp", "port": port, "from": who })];
    if config.transport == TransportKind::Direct {
        inbound.push(json!({ "protocol": "tcp", "port": "those of specs", "from": "whoever uses their endpoints" }));
    }
    let mut outbound = vec![json!({
        "protocol": "tcp", "port": 443,
        "to": "the registry of the images, and the log service; through a NAT, VPC endpoints, or assign_public_ip",
    })];
    if config.shared_storage.is_some() || !config.volumes.is_empty() {
        outbound.push(json!({ "protocol": "tcp", "port": 2049, "to": "the mount targets of the file systems" }));
    }
    if config.s3_bucket.is_some() {
        outbound
            .push(json!({ "protocol": "tcp", "port": 443, "to": "the bucket; a gateway endpoint of S3 is enough" }));
    }
    json!({
        "security_groups": config.security_groups,
        "tasks": {
            "inbound": inbound,
            "outbound": outbound,
        },
        "orchestrator": {
            "outbound": [
                { "protocol": "tcp", "port": 443, "to": format!("ecs.{}", place.region) },
                { "protocol": "tcp", "port": port, "to": "the tasks" },
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use sandbox_core::from_json;
    use serde_json::{Value, json};

    use super::{Needs, needs};

    fn of(settings: Value, images: &[&str]) -> Needs {
        let images: Vec<_> = images.iter().map(|image| (*image).to_owned()).collect();
        needs(&from_json(settings, "config").unwrap(), &images).unwrap()
    }

    fn base() -> Value {
        json!({
            "region": "eu-central-1", "cluster": "boxes",
            "execution_role_arn": "arn:aws:iam::123456789012:role/exec",
            "sidecar": {"image": "123456789012.dkr.ecr.eu-central-1.amazonaws.com/side/car:1"},
        })
    }

    fn actions(policy: &Value) -> Vec<&str> {
        let statements = policy["Statement"].as_array().unwrap();
        statements.iter().flat_map(|one| one["Action"].as_array().unwrap()).map(|one| one.as_str().unwrap()).collect()
    }

    /// Every action that the code calls, in the services that it calls.
    #[test]
    fn whoever_makes_sandboxes_may_do_what_the_code_does_and_no_more() {
        let needs = of(base(), &[]);
        let mut found = actions(&needs.orchestrator);
        found.sort_unstable();
        assert_eq!(
            found,
            [
                "ecs:DescribeTaskDefinition",
                "ecs:DescribeTasks",
                "ecs:ListTasks",
                "ecs:RegisterTaskDefinition",
                "ecs:RunTask",
                "ecs:StopTask",
                "ecs:TagResource",
                "iam:PassRole",
            ]
        );
        let code = [
            include_str!("aws/ecs.rs"),
            include_str!("aws/ec2.rs"),
            include_str!("aws/secrets.rs"),
            include_str!("aws/s3.rs"),
            include_str!("aws/ecr.rs"),
            include_str!("aws/codebuild.rs"),
        ]
        .concat();
        let all = base();
        let full = of(
            json!({
                "region": all["region"], "cluster": all["cluster"], "address": "public", "assign_public_ip": true,
                "settings_parameter": "/boxes", "key": {"secret_arn": "arn:aws:secretsmanager:r:1:secret:k"},
                "tags": {"a": "b"}, "s3_bucket": "staging", "ecr_repository": "boxes", "build": {"project": "builder"},
            }),
            &[],
        );
        for action in actions(&full.orchestrator) {
            let name = action.split_once(':').unwrap().1;
            assert!(name == "PassRole" || code.contains(&format!("\"{name}\"")), "{action} is never called");
        }
        let called = ["DescribeNetworkInterfaces", "GetParameter", "GetSecretValue", "PutObject", "StopBuild"];
        assert!(called.iter().all(|name| actions(&full.orchestrator).iter().any(|action| action.ends_with(name))));
    }

    #[test]
    fn rights_are_bound_to_the_cluster_the_definitions_and_the_roles() {
        let needs = of(base(), &[]);
        let text = needs.orchestrator.to_string();
        for part in [
            "arn:aws:ecs:eu-central-1:123456789012:cluster/boxes",
            "arn:aws:ecs:eu-central-1:123456789012:task/boxes/*",
            "arn:aws:ecs:eu-central-1:123456789012:task-definition/sandbox-*",
            r#"["arn:aws:iam::123456789012:role/exec"]"#,
            "ecs-tasks.amazonaws.com",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    /// Settings with which everything is needed that can be.
    fn everything() -> Value {
        let mut settings = base();
        for (key, value) in [
            ("address", json!("public")),
            ("assign_public_ip", json!(true)),
            ("settings_parameter", json!("/boxes")),
            ("key", json!({"secret_arn": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:k"})),
            ("image_pull_secret_arn", json!("arn:aws:secretsmanager:eu-central-1:123456789012:secret:pull")),
            ("log_group", json!("/boxes")),
            ("task_role_arn", json!("arn:aws:iam::123456789012:role/task")),
            ("tags", json!({"a": "b"})),
            ("s3_bucket", json!("staging")),
            ("ecr_repository", json!("123456789012.dkr.ecr.eu-central-1.amazonaws.com/boxes")),
            ("build", json!({"project": "builder"})),
        ] {
            settings[key] = value;
        }
        settings
    }

    #[test]
    fn no_action_is_a_star_and_each_that_is_for_all_resources_is_explained() {
        let needs = of(everything(), &[]);
        let mut of_all = Vec::new();
        for policy in [&needs.orchestrator, &needs.execution_role] {
            assert!(actions(policy).iter().all(|action| !action.contains('*')), "{policy}");
            for statement in policy["Statement"].as_array().unwrap().iter().filter(|one| one["Resource"] == "*") {
                of_all
                    .extend(statement["Action"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()));
            }
        }
        of_all.sort();
        let readme = include_str!("../README.md");
        let explained = readme.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | all: "));
        let mut explained: Vec<_> = explained.map(|(action, _)| action.to_owned()).collect();
        explained.sort();
        assert_eq!(of_all, explained, "what is for all resources, and what the README explains");
    }

    #[test]
    fn what_is_printed_is_json_that_says_the_same() {
        let needs = of(everything(), &["123456789012.dkr.ecr.eu-central-1.amazonaws.com/tool:1"]);
        let printed: Value = serde_json::from_str(&needs.to_string()).unwrap();
        assert_eq!(printed["orchestrator"], needs.orchestrator);
        assert_eq!(printed["execution_role"], needs.execution_role);
        assert_eq!(printed["task_role"], json!({"Version": "2012-10-17", "Statement": []}));
        assert_eq!(printed["network"], needs.network);
    }

    #[test]
    fn of_a_bucket_a_registry_and_a_build_service_only_our_own_is_touched() {
        let text = of(everything(), &[]).orchestrator.to_string();
        assert!(text.contains(r#""Resource":"arn:aws:s3:::staging/sandbox/*""#), "{text}");
        for resource in [
            "ecr:eu-central-1:123456789012:repository/boxes\"",
            "codebuild:eu-central-1:123456789012:project/builder\"",
            "log-group:/aws/codebuild/builder:log-stream:*\"",
        ] {
            assert!(text.contains(resource), "{resource} is not in {text}");
        }
        assert!(!text.contains("s3:List"));
    }

    #[test]
    fn the_sandboxed_code_may_do_nothing() {
        assert_eq!(of(base(), &[]).task_role["Statement"], json!([]));
        assert_eq!(of(everything(), &[]).task_role["Statement"], json!([]));
        let mut storage = everything();
        storage["shared_storage"] = json!({"file_system_id": "fs-1", "access_point_id": "fsap-2", "iam": true});
        storage["volumes"] = json!({"plain": {"file_system_id": "fs-3"}});
        let policy = of(storage, &[]).task_role;
        let statements = policy["Statement"].as_array().unwrap();
        assert_eq!(statements.len(), 1, "a file system asks for rights only where it is told to: {policy}");
        let arn = "arn:aws:elasticfilesystem:eu-central-1:123456789012";
        assert_eq!(statements[0]["Resource"], format!("{arn}:file-system/fs-1"));
        let point = &statements[0]["Condition"]["StringEquals"]["elasticfilesystem:AccessPointArn"];
        assert_eq!(*point, format!("{arn}:access-point/fsap-2"));
    }

    #[test]
    fn aws_may_pull_these_images_and_write_this_log() {
        let own = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/team/tool@sha256:00";
        let mut settings = base();
        settings["log_group"] = "/boxes".into();
        let needs = of(settings, &[own, "debian:12", "registry.example/x"]);
        let text = needs.execution_role.to_string();
        for name in ["side/car", "team/tool"] {
            assert!(text.contains(&format!("arn:aws:ecr:eu-central-1:123456789012:repository/{name}\"")), "{text}");
        }
        assert!(text.contains("log-group:/boxes:log-stream:sandbox/*"), "{text}");
        assert!(!text.contains("debian") && !text.contains("registry.example"));
    }

    #[test]
    fn only_the_door_is_open() {
        let inbound = |settings| of(settings, &[]).network["tasks"]["inbound"].clone();
        assert_eq!(inbound(base()), json!([{"protocol": "tcp", "port": 52222, "from": "whoever makes sandboxes"}]));
        let mut direct = base();
        direct["transport"] = "direct".into();
        assert_eq!(inbound(direct)[0]["port"], 52223);
    }
}

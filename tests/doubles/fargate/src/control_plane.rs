//! moto, started and prepared (`control_plane.py`).

use std::{collections::BTreeMap, env, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

const SCRIPT: &str = include_str!("../control_plane.py");

/// The Python that has moto: `cargo xtask needs` makes it.
const VARIABLE: &str = "SANDBOX_TEST_MOTO_PYTHON";

/// How long it may take to be there, on a machine that does much else.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// What the double made of an account of AWS.
#[derive(Clone, Debug, Deserialize)]
pub struct Account {
    /// Where moto listens.
    pub(crate) address: String,
    /// The account's number.
    pub account: String,
    /// The region of all of it.
    pub region: String,
    /// The cluster.
    pub cluster: String,
    /// Three subnets, in a zone each.
    pub subnets: Vec<String>,
    /// A security group.
    pub security_group: String,
    /// A bucket of S3.
    pub bucket: String,
    /// The ARNs of the secrets, by name.
    pub secrets: BTreeMap<String, String>,
    /// The key of a user with the permissions that the double was given.
    pub operator: Key,
    /// The key of a user who may do nothing.
    pub stranger: Key,
}

/// A key of a user.
#[derive(Clone, Debug, Deserialize)]
pub struct Key {
    /// The public half.
    pub access_key_id: String,
    /// The secret half.
    pub secret_access_key: String,
}

impl Account {
    /// The name of a role of this account. Roles are not looked at.
    pub fn role(&self, name: &str) -> String {
        format!("arn:aws:iam::{}:role/{name}", self.account)
    }
}

/// A running moto. It ends with this value, or with this process.
pub(crate) struct ControlPlane {
    _child: Child,
    pub(crate) account: Account,
}

/// The Python with moto.
pub(crate) fn python() -> Result<PathBuf> {
    if let Some(python) = env::var_os(VARIABLE) {
        return Ok(python.into());
    }
    let python = crate::image::target().join("python/moto/bin/python");
    if !python.is_file() {
        bail!("{} is missing: run cargo xtask needs, or name a python with moto by {VARIABLE}", python.display());
    }
    Ok(python)
}

impl ControlPlane {
    /// What is wanted of it: see `control_plane.py`.
    pub(crate) async fn start(options: &Value) -> Result<Self> {
        let mut command = Command::new(python()?);
        command.args(["-c", SCRIPT, &options.to_string()]);
        // Nothing of this machine's own accounts.
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("cannot start the python with moto")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        // It logs every request there: the last words matter only if it does not start.
        let mut log = BufReader::new(child.stderr.take().context("no log")?).lines();
        let (tell, told) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let mut last = std::collections::VecDeque::new();
            while let Ok(Some(line)) = log.next_line().await {
                if last.len() == 10 {
                    last.pop_front();
                }
                last.push_back(line);
            }
            let _ = tell.send(Vec::from(last).join("\n"));
        });
        let line =
            tokio::time::timeout(STARTS_WITHIN, lines.next_line()).await.context("moto did not start in time")?;
        let Some(line) = line? else {
            bail!("moto did not start; it ended with:\n{}", told.await.unwrap_or_default());
        };
        let account = serde_json::from_str(&line).context("the control plane told no account")?;
        Ok(Self { _child: child, account })
    }
}

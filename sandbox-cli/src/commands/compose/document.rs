//! Which document, which project, and what is allowed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sandbox_api::compose::{
    BindPolicy, ComposeAllow, ComposeLoaded, ComposeOptions, ComposeProject, ComposeReport, PlanOptions, PublishPolicy,
    Severity,
};

use crate::{app::App, exit, failure::Failure, output, values};

/// Which document, which project, and what is allowed.
#[derive(Args)]
pub(crate) struct DocumentArgs {
    /// Compose file; several are laid over each other [default: compose.yaml and the like]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Name of the project [default: COMPOSE_PROJECT_NAME, the document's name, the folder's name]
    #[arg(short = 'p', long, value_name = "NAME")]
    project_name: Option<String>,
    /// What relative paths are relative to [default: the folder of the first file]
    #[arg(long, value_name = "DIR")]
    project_directory: Option<PathBuf>,
    /// Read variables from this file instead of .env
    #[arg(long, value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Activate a profile
    #[arg(long, value_name = "NAME")]
    profile: Vec<String>,
    /// Where to run it [env: SANDBOX_PROVIDER] [default: docker]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) provider: Vec<String>,
    /// Allow what is refused for the safety of this machine
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    allow: Vec<Allow>,
    /// What becomes of bind mounts where the provider has none
    #[arg(long, value_name = "HOW", value_enum, default_value = "mount")]
    bind: Bind,
    /// What becomes of published ports
    #[arg(long, value_name = "HOW", value_enum, default_value = "as-written")]
    publish: Publish,
    /// Take this image for a service, in place of building it
    #[arg(long, value_name = "SERVICE=REFERENCE", value_parser = values::pair)]
    image: Vec<(String, String)>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Allow {
    Privileged,
    HostNetwork,
    HostPaths,
    PublicPorts,
    FlatNetworks,
}

#[derive(Clone, Copy, ValueEnum)]
enum Bind {
    Mount,
    Copy,
}

#[derive(Clone, Copy, ValueEnum)]
enum Publish {
    AsWritten,
    Dynamic,
    Nothing,
}

impl DocumentArgs {
    /// Loads the document. What is wrong with it is told; what is only worth knowing is a warning.
    pub(crate) fn load(&self, app: &App, services: &[String]) -> Result<ComposeProject, Failure> {
        let ComposeLoaded { project, report, .. } = ComposeProject::load(&self.options(services));
        tell(app, &report);
        project.ok_or_else(|| failure(&report))
    }

    fn options(&self, services: &[String]) -> ComposeOptions {
        let mut options = ComposeOptions::process();
        options.files.clone_from(&self.files);
        options.project_name.clone_from(&self.project_name);
        options.project_directory.clone_from(&self.project_directory);
        options.env_files.clone_from(&self.env_file);
        options.profiles.clone_from(&self.profile);
        options.services = services.to_vec();
        options
    }

    /// The name of the project. A name that is given needs no document.
    pub(crate) fn name(&self, app: &App) -> Result<String, Failure> {
        match &self.project_name {
            Some(name) => Ok(name.clone()),
            None => Ok(self.load(app, &[])?.name),
        }
    }

    /// What is allowed and chosen.
    pub(crate) fn plan_options(&self) -> PlanOptions {
        let mut options = PlanOptions::default();
        options.allow = self
            .allow
            .iter()
            .map(|allow| match allow {
                Allow::Privileged => ComposeAllow::Privileged,
                Allow::HostNetwork => ComposeAllow::HostNetwork,
                Allow::HostPaths => ComposeAllow::HostPaths,
                Allow::PublicPorts => ComposeAllow::PublicPorts,
                Allow::FlatNetworks => ComposeAllow::FlatNetworks,
            })
            .collect();
        options.bind = match self.bind {
            Bind::Mount => BindPolicy::Mount,
            Bind::Copy => BindPolicy::Copy,
        };
        options.publish = match self.publish {
            Publish::AsWritten => PublishPolicy::AsWritten,
            Publish::Dynamic => PublishPolicy::Dynamic,
            Publish::Nothing => PublishPolicy::Nothing,
        };
        options.images = self.image.iter().cloned().collect();
        options
    }
}

/// Tells the findings on standard error: one JSON object a line, or text.
pub(crate) fn tell(app: &App, report: &ComposeReport) {
    for finding in report.findings() {
        if app.is_quiet && finding.severity != Severity::Error {
            continue;
        }
        if app.format.is_json() {
            output::note(&serde_json::json!({ "finding": finding }).to_string());
        } else if finding.severity != Severity::Note {
            output::note(finding.to_string().trim_end());
        }
    }
}

/// The failure that a report with errors is.
pub(crate) fn failure(report: &ComposeReport) -> Failure {
    let count = report.count(Severity::Error);
    let message = format!("the compose document has {count} problem{}", if count == 1 { "" } else { "s" });
    Failure::new(exit::USAGE, "compose.invalid", message)
}

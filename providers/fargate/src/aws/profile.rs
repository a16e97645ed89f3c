//! A profile of the files `~/.aws/config` and `~/.aws/credentials`.

use std::{collections::HashMap, sync::Arc};

use super::environment::Environment;

/// The texts of both files.
#[derive(Clone, Default)]
struct Files {
    config: String,
    credentials: String,
}

/// The keys of one profile; those of the credentials file go first.
#[derive(Clone, Default)]
pub(crate) struct Profile {
    pub(crate) name: String,
    keys: HashMap<String, String>,
    is_known: bool,
    files: Arc<Files>,
}

impl Profile {
    /// Reads the profile that is named, or that of the environment. Files that are missing are empty.
    pub(crate) fn read(named: Option<&str>, environment: &Environment) -> Self {
        let name = named.or_else(|| environment.get("AWS_PROFILE")).unwrap_or("default");
        let text = |variable, below_home| {
            let path = environment.file(variable, below_home)?;
            std::fs::read_to_string(path).ok()
        };
        let config = text("AWS_CONFIG_FILE", ".aws/config").unwrap_or_default();
        let credentials = text("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials").unwrap_or_default();
        Self::of_files(Arc::new(Files { config, credentials }), name)
    }

    /// Takes the profile's keys out of the texts of both files.
    #[cfg(test)]
    pub(crate) fn parse(config: &str, credentials: &str, name: &str) -> Self {
        let files = Files { config: config.to_owned(), credentials: credentials.to_owned() };
        Self::of_files(Arc::new(files), name)
    }

    fn of_files(files: Arc<Files>, name: &str) -> Self {
        let mut profile = Self { name: name.to_owned(), files: files.clone(), ..Self::default() };
        profile.take(&files.config, |section| match section.strip_prefix("profile ") {
            Some(rest) => rest.trim() == name,
            None => section == name && name == "default",
        });
        profile.take(&files.credentials, |section| section == name);
        profile
    }

    /// Another profile of the same files.
    pub(crate) fn other(&self, name: &str) -> Self {
        Self::of_files(self.files.clone(), name)
    }

    /// A session of the sign-on service, which several profiles can share.
    pub(crate) fn sso_session(&self, name: &str) -> Self {
        let mut session = Self { name: name.to_owned(), files: self.files.clone(), ..Self::default() };
        let is_meant = |section: &str| section.strip_prefix("sso-session ").is_some_and(|rest| rest.trim() == name);
        session.take(&self.files.config, is_meant);
        session
    }

    fn take(&mut self, text: &str, is_meant: impl Fn(&str) -> bool) {
        let mut is_inside = false;
        for line in text.lines() {
            let trimmed = line.trim();
            if let Some(section) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                is_inside = is_meant(section.0.trim());
                self.is_known |= is_inside;
            } else if is_inside
                // Indented lines belong to a nested section, of single services.
                && !line.starts_with([' ', '\t'])
                && !trimmed.starts_with(['#', ';'])
                && let Some((key, value)) = trimmed.split_once('=')
            {
                let value = value.split(" #").next().unwrap_or_default().trim();
                self.keys.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            }
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.keys.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether any file has it.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known
    }
}

#[cfg(test)]
mod tests {
    use super::Profile;

    const CONFIG: &str = "\
# a comment
[default]
region = eu-west-1
s3 =
  region = nested
[profile team]
region=us-east-2 # here
credential_process = /bin/tool --json
[team]
region = wrong
";

    #[test]
    fn only_the_keys_of_the_profile_are_taken_and_the_credentials_go_first() {
        let credentials = "[team]\naws_access_key_id = A\nREGION = us-east-9\n";
        let default = Profile::parse(CONFIG, credentials, "default");
        assert_eq!((default.get("region"), default.get("aws_access_key_id")), (Some("eu-west-1"), None));
        let team = Profile::parse(CONFIG, "", "team");
        assert_eq!(team.get("region"), Some("us-east-2"));
        assert_eq!(team.get("credential_process"), Some("/bin/tool --json"));
        let team = Profile::parse(CONFIG, credentials, "team");
        assert_eq!((team.get("region"), team.get("aws_access_key_id")), (Some("us-east-9"), Some("A")));
        let other = Profile::parse(CONFIG, credentials, "default").other("team");
        assert_eq!(other.get("aws_access_key_id"), Some("A"));
        let session =
            Profile::parse("[sso-session a]\nsso_region = r\n[a]\nsso_region = x", "", "default").sso_session("a");
        assert_eq!((session.get("sso_region"), session.is_known()), (Some("r"), true));
        let none = Profile::parse(CONFIG, credentials, "nobody");
        assert!(!none.is_known() && none.get("region").is_none() && team.is_known());
    }
}

//! What is written on a task, so that any process finds it again and nobody stops it by mistake.
//!
//! A value of a tag is at most 256 characters of few kinds. So texts are written with `=XX` for every other byte, and go
//! on in a second tag where one is too short. Everybody who may describe tasks reads them: nothing in here is a secret.

use std::collections::BTreeMap;

use sandbox_core::{Owner, Result, SandboxError, SandboxIdentity};

use crate::{config::TransportKind, error::NAME};

/// Tags with this beginning are ours.
const PREFIX: &str = "sandbox.";
const INCARNATION: &str = "sandbox.incarnation";
/// Which secret its keys come from.
const KEY: &str = "sandbox.key";
const DOOR: &str = "sandbox.door";
/// Where the relay leads by way of which large files move.
const RELAY: &str = "sandbox.relay";
const RUN: &str = "sandbox.run";
const OWNER: &str = "sandbox.owner";
const CREATED: &str = "sandbox.created";
pub(crate) const EXPIRES: &str = "sandbox.expires";
const SANDBOX_NAME: &str = "sandbox.name";
const IMAGE: &str = "sandbox.image";
const PORTS: &str = "sandbox.ports";
const LABEL: &str = "sandbox.label.";
const ATTRIBUTION: &str = "sandbox.attribution.";

/// As ECS has it.
const TAGS_MAX: usize = 50;
const KEY_MAX: usize = 128;
const VALUE_MAX: usize = 256;

/// Everything that the tags of a task say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Labels {
    pub(crate) incarnation: String,
    pub(crate) key_id: String,
    pub(crate) transport: TransportKind,
    /// The port of the task at which it is entered.
    pub(crate) port: u16,
    /// Host and port that the task's relay for large files leads to.
    pub(crate) relay: Option<String>,
    pub(crate) identity: SandboxIdentity,
    pub(crate) name: Option<String>,
    pub(crate) image: String,
    pub(crate) ports: Vec<u16>,
    pub(crate) metadata: BTreeMap<String, String>,
}

impl Labels {
    /// The tags of a task, with those of the settings.
    ///
    /// # Errors
    /// `InvalidInput`, naming what does not fit.
    pub(crate) fn to_tags(&self, others: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        let mut tags = others.clone();
        let identity = &self.identity;
        let door = match self.transport {
            TransportKind::Ssh => format!("ssh:{}", self.port),
            TransportKind::Direct => format!("direct:{}", self.port),
        };
        let owner = match &identity.owner {
            Owner::Lease => "lease".to_owned(),
            Owner::Process { host, pid, start_time } => format!("{}/{pid}/{start_time}", encode(host)),
            _ => return Err(SandboxError::invalid_input("identity.owner", "is of a kind that is not known here")),
        };
        tags.insert(INCARNATION.to_owned(), self.incarnation.clone());
        tags.insert(KEY.to_owned(), self.key_id.clone());
        tags.insert(DOOR.to_owned(), door);
        tags.insert(OWNER.to_owned(), owner);
        tags.insert(CREATED.to_owned(), identity.created_at_ms.to_string());
        put(&mut tags, RUN, &identity.run_id);
        put(&mut tags, IMAGE, &self.image);
        if let Some(at) = identity.expires_at_ms {
            tags.insert(EXPIRES.to_owned(), at.to_string());
        }
        if let Some(relay) = &self.relay {
            put(&mut tags, RELAY, relay);
        }
        if let Some(name) = &self.name {
            put(&mut tags, SANDBOX_NAME, name);
        }
        if !self.ports.is_empty() {
            let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
            put(&mut tags, PORTS, &ports.join("/"));
        }
        for (prefix, field, pairs) in
            [(LABEL, "metadata", &self.metadata), (ATTRIBUTION, "identity.attribution", &identity.attribution)]
        {
            for (key, value) in pairs {
                let name = format!("{prefix}{}", encode(key));
                if name.len() > KEY_MAX - 3 {
                    let text = format!("the key {key:?} is too long for a tag of AWS");
                    return Err(SandboxError::invalid_input(field, text));
                }
                put(&mut tags, &name, value);
            }
        }
        if tags.len() > TAGS_MAX {
            let text =
                format!("a task has at most {TAGS_MAX} tags of {VALUE_MAX} characters; these need {}", tags.len());
            return Err(SandboxError::invalid_input("metadata", text));
        }
        Ok(tags)
    }

    /// None for a task that is not a sandbox of this system.
    pub(crate) fn read(tags: &BTreeMap<String, String>) -> Option<Self> {
        let (kind, port) = tags.get(DOOR)?.split_once(':')?;
        let transport = match kind {
            "ssh" => TransportKind::Ssh,
            "direct" => TransportKind::Direct,
            _ => return None,
        };
        let identity = SandboxIdentity {
            run_id: get(tags, RUN)?,
            owner: owner(tags.get(OWNER)?)?,
            created_at_ms: tags.get(CREATED)?.parse().ok()?,
            expires_at_ms: tags.get(EXPIRES).and_then(|text| text.parse().ok()),
            attribution: all(tags, ATTRIBUTION),
        };
        let ports = get(tags, PORTS).unwrap_or_default();
        Some(Self {
            incarnation: tags.get(INCARNATION)?.clone(),
            key_id: tags.get(KEY)?.clone(),
            transport,
            port: port.parse().ok()?,
            relay: get(tags, RELAY),
            identity,
            name: get(tags, SANDBOX_NAME),
            image: get(tags, IMAGE)?,
            ports: ports.split('/').filter_map(|port| port.parse().ok()).collect(),
            metadata: all(tags, LABEL),
        })
    }
}

fn owner(text: &str) -> Option<Owner> {
    if text == "lease" {
        return Some(Owner::Lease);
    }
    let mut parts = text.rsplitn(3, '/');
    let (start_time, pid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Owner::Process { host: decode(parts.next()?)?, pid, start_time })
}

/// Checks tags of the settings.
///
/// # Errors
/// `InvalidInput`, naming the field.
pub(crate) fn check(field: &str, tags: &BTreeMap<String, String>) -> Result<()> {
    let is_plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || " +-=._:/@".contains(c));
    for (key, value) in tags {
        let why = if key.is_empty() || key.len() > KEY_MAX || value.len() > VALUE_MAX {
            format!("{key:?}: a key has 1 to {KEY_MAX} characters, a value at most {VALUE_MAX}")
        } else if key.starts_with(PREFIX) || key.to_ascii_lowercase().starts_with("aws:") {
            format!("{key:?} must not begin with {PREFIX:?} or \"aws:\"")
        } else if !is_plain(key) || !is_plain(value) {
            format!("{key:?}: only letters, digits, blanks and + - = . _ : / @")
        } else {
            continue;
        };
        return Err(SandboxError::invalid_input(field, why).with_provider(NAME));
    }
    Ok(())
}

/// Writes a text into as many tags as it needs: `key`, `key.1`, ….
fn put(tags: &mut BTreeMap<String, String>, key: &str, text: &str) {
    let encoded = encode(text);
    let mut rest = encoded.as_str();
    for part in 0.. {
        let (value, more) = rest.split_at(rest.len().min(VALUE_MAX));
        let name = if part == 0 { key.to_owned() } else { format!("{key}=.{part}") };
        tags.insert(name, value.to_owned());
        rest = more;
        if rest.is_empty() {
            return;
        }
    }
}

fn get(tags: &BTreeMap<String, String>, key: &str) -> Option<String> {
    let mut text = tags.get(key)?.clone();
    for part in 1.. {
        match tags.get(&format!("{key}=.{part}")) {
            Some(more) => text.push_str(more),
            None => break,
        }
    }
    decode(&text)
}

/// Everything below a prefix.
fn all(tags: &BTreeMap<String, String>, prefix: &str) -> BTreeMap<String, String> {
    let names = tags.keys().filter_map(|name| name.strip_prefix(prefix).map(|rest| (name, rest)));
    // A second part is no text of ours: its name does not decode.
    names.filter_map(|(name, rest)| Some((decode(rest)?, get(tags, name)?))).collect()
}

/// Letters, digits and `. _ - : / @ +` as they are, every other byte as `=XX`.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b':' | b'/' | b'@' | b'+' => {
                encoded.push(byte as char);
            }
            byte => encoded.push_str(&format!("={byte:02X}")),
        }
    }
    encoded
}

fn decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'=' {
            bytes.push(*first);
            continue;
        }
        let pair =
            std::str::from_utf8(rest.get(..2)?).ok().filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(pair, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sandbox_core::{Owner, SandboxIdentity};

    use super::{Labels, check, decode, encode};
    use crate::config::TransportKind;

    fn labels() -> Labels {
        Labels {
            incarnation: "ab".into(),
            key_id: "cd".into(),
            transport: TransportKind::Ssh,
            port: 52222,
            relay: Some("bucket.example:443".into()),
            identity: SandboxIdentity {
                run_id: "run {1}".into(),
                owner: Owner::Process { host: "a/b host".into(), pid: 7, start_time: 9 },
                created_at_ms: 5,
                expires_at_ms: Some(6),
                attribution: [("team".to_owned(), "é".to_owned())].into(),
            },
            name: Some("n".into()),
            image: "registry.example:5000/a/b@sha256:00".into(),
            ports: vec![80, 65535],
            metadata: [("k=1".to_owned(), "\"v\" \n".repeat(80)), ("k".to_owned(), String::new())].into(),
        }
    }

    #[test]
    fn what_is_written_on_a_task_is_read_again() {
        let tags = labels().to_tags(&[("cost".to_owned(), "center 1".to_owned())].into()).unwrap();
        let is_plain = |text: &String| text.chars().all(|c| c.is_ascii_alphanumeric() || " +-=._:/@".contains(c));
        assert!(tags.iter().all(|(key, value)| is_plain(key) && is_plain(value)), "{tags:?}");
        assert!(tags.iter().all(|(key, value)| key.len() <= 128 && value.len() <= 256));
        assert_eq!(tags["cost"], "center 1");
        assert_eq!(Labels::read(&tags), Some(labels()));
        let mut lease = labels();
        lease.identity.owner = Owner::Lease;
        lease.identity.expires_at_ms = None;
        lease.transport = TransportKind::Direct;
        assert_eq!(Labels::read(&lease.to_tags(&BTreeMap::new()).unwrap()), Some(lease));
    }

    #[test]
    fn tasks_of_others_are_none_of_ours_whatever_their_tags_say() {
        let full = labels().to_tags(&BTreeMap::new()).unwrap();
        assert_eq!(Labels::read(&BTreeMap::new()), None);
        for key in ["sandbox.door", "sandbox.owner", "sandbox.created", "sandbox.incarnation", "sandbox.run"] {
            let mut tags = full.clone();
            for bad in ["", "=", "=é", "x:y:z", "//", "ssh:99999"] {
                tags.insert(key.to_owned(), bad.to_owned());
                let _ = Labels::read(&tags);
            }
            tags.remove(key);
            assert_eq!(Labels::read(&tags), None, "{key}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_its_field() {
        let mut many = labels();
        many.metadata = (0..60).map(|number| (number.to_string(), String::new())).collect();
        assert_eq!(many.to_tags(&BTreeMap::new()).unwrap_err().field(), Some("metadata"));
        let mut long = labels();
        long.metadata = [("k".repeat(120), String::new())].into();
        assert_eq!(long.to_tags(&BTreeMap::new()).unwrap_err().field(), Some("metadata"));
        for bad in ["aws:x", "sandbox.x", "", "a{"] {
            assert!(check("tags", &[(bad.to_owned(), String::new())].into()).is_err(), "{bad}");
        }
        assert!(check("tags", &[("a b".to_owned(), "c=d".to_owned())].into()).is_ok());
    }

    #[test]
    fn every_text_comes_back_and_what_is_no_such_text_is_none() {
        for text in ["", "plain", "é=ü", "=3D", "\u{0}\u{7f} \n"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
        for bad in ["=", "=4", "=GG", "=é", "=FF", "a=+1"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}

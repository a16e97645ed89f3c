//! Ports in their short and long forms.

use std::net::IpAddr;

use serde::Serialize;

use super::node::Node;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// `tcp` or `udp`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Which port of the host stands for one of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostPort {
    /// Any that is free.
    Any,
    /// This one.
    Fixed(u16),
    /// A free one of these, both ends included.
    Range(u16, u16),
}

/// A port of a service that is reached from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ComposePort {
    /// Inside.
    pub target: u16,
    /// Outside.
    pub published: HostPort,
    /// The address outside; none: not said.
    pub host_ip: Option<IpAddr>,
    /// The transport.
    pub protocol: Protocol,
    /// As it is written: published on the host itself, not by a swarm. The same here.
    #[serde(skip)]
    pub(crate) is_host_mode: bool,
}

/// What makes two entries of a list the same port when documents are merged.
pub(crate) fn identity(node: &Node) -> String {
    if let Some(text) = node.as_text() {
        return text.to_owned();
    }
    let text = |key: &str| node.get(key).and_then(Node::as_text).unwrap_or_default();
    format!("{}:{}:{}/{}", text("host_ip"), text("published"), text("target"), text("protocol"))
}

/// Reads one entry: several ports where it is a range.
pub(crate) fn read(node: &Node) -> Result<Vec<ComposePort>, String> {
    match node.as_text() {
        Some(text) => short(text),
        None => long(node),
    }
}

/// Reads an entry of `expose`: ports inside.
pub(crate) fn exposed(text: &str) -> Result<Vec<(u16, Protocol)>, String> {
    let (ports, protocol) = split_protocol(text)?;
    let (first, last) = range(ports)?;
    Ok((first..=last).map(|port| (port, protocol)).collect())
}

fn short(text: &str) -> Result<Vec<ComposePort>, String> {
    let (text, protocol) = split_protocol(text.trim())?;
    let (host_ip, rest) = split_address(text)?;
    let (published, target) = match rest.rsplit_once(':') {
        Some((published, target)) => (published, target),
        None => ("", rest),
    };
    let host_ip = match host_ip {
        "" => None,
        address => Some(address.parse().map_err(|_| "the address in front is no IP address".to_owned())?),
    };
    let targets = range(target)?;
    let published = if published.is_empty() { None } else { Some(host_range(published)?) };
    pairs(targets, published, host_ip, protocol)
}

fn long(node: &Node) -> Result<Vec<ComposePort>, String> {
    let text = |key: &str| node.get(key).and_then(Node::as_text).map(str::trim).filter(|text| !text.is_empty());
    let target = text("target").ok_or("target is missing")?;
    let target = port(target)?;
    let protocol = protocol(text("protocol").unwrap_or("tcp"))?;
    let host_ip = match text("host_ip") {
        None => None,
        Some(address) => {
            Some(address.trim_matches(['[', ']']).parse().map_err(|_| "host_ip is no IP address".to_owned())?)
        }
    };
    if !matches!(text("mode"), None | Some("ingress" | "host")) {
        return Err("mode must be host or ingress".to_owned());
    }
    let published = match text("published") {
        None | Some("0") => None,
        Some(published) => Some(host_range(published)?),
    };
    let mut ports = pairs((target, target), published, host_ip, protocol)?;
    ports.iter_mut().for_each(|port| port.is_host_mode = text("mode") == Some("host"));
    Ok(ports)
}

fn pairs(
    (first, last): (u16, u16),
    published: Option<(u16, u16)>,
    host_ip: Option<IpAddr>,
    protocol: Protocol,
) -> Result<Vec<ComposePort>, String> {
    let count = last - first;
    let host = |index: u16| match published {
        None => Ok(HostPort::Any),
        Some((start, end)) if start == end && count == 0 => Ok(HostPort::Fixed(start)),
        Some((start, end)) if end - start == count => Ok(HostPort::Fixed(start + index)),
        Some((start, end)) if count == 0 => Ok(HostPort::Range(start, end)),
        Some(_) => Err("both ranges must have the same length".to_owned()),
    };
    (0..=count)
        .map(|index| {
            Ok(ComposePort { target: first + index, published: host(index)?, host_ip, protocol, is_host_mode: false })
        })
        .collect()
}

fn split_protocol(text: &str) -> Result<(&str, Protocol), String> {
    match text.split_once('/') {
        Some((ports, name)) => Ok((ports, protocol(name)?)),
        None => Ok((text, Protocol::Tcp)),
    }
}

fn protocol(name: &str) -> Result<Protocol, String> {
    match name.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        _ => Err("the protocol must be tcp or udp".to_owned()),
    }
}

/// The address in front, and `published:target`, `:target` or `target`.
fn split_address(text: &str) -> Result<(&str, &str), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or("a [ is opened and not closed")?;
        let rest = rest.strip_prefix(':').ok_or("behind an address a port must follow")?;
        return Ok((address, rest));
    }
    match text.matches(':').count() {
        0 | 1 => Ok(("", text)),
        2 => Ok(text.split_once(':').unwrap_or(("", text))),
        _ => Err("must be [ADDRESS:][PUBLISHED:]TARGET[/PROTOCOL]; an IPv6 address stands in brackets".to_owned()),
    }
}

fn port(text: &str) -> Result<u16, String> {
    let number: Option<u32> = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    match number {
        Some(number @ 1..=65_535) => Ok(number as u16),
        Some(number) => Err(format!("a port must be 1 to 65535, not {number}")),
        None => Err("a port must be a number from 1 to 65535, or a range such as 8000-8002".to_owned()),
    }
}

fn range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    if last < first {
        return Err("a range must not end before it starts".to_owned());
    }
    // Each becomes a forwarded port of its own.
    if last - first >= 1024 {
        return Err("a range must not have more than 1024 ports".to_owned());
    }
    Ok((first, last))
}

fn host_range(text: &str) -> Result<(u16, u16), String> {
    range(text)
}

#[cfg(test)]
mod tests {
    use super::{HostPort, Protocol, short};

    #[test]
    fn h05_ports_base_60_short_forms_and_ranges() {
        let one = |text: &str| {
            let ports = short(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(ports.len(), 1, "{text}");
            let port = ports.into_iter().next().unwrap();
            (port.target, port.published, port.host_ip.map(|ip| ip.to_string()), port.protocol)
        };
        assert_eq!(one("2122:22"), (22, HostPort::Fixed(2122), None, Protocol::Tcp));
        assert_eq!(one("22"), (22, HostPort::Any, None, Protocol::Tcp));
        assert_eq!(one("127.0.0.1::80"), (80, HostPort::Any, Some("127.0.0.1".into()), Protocol::Tcp));
        assert_eq!(one("[::1]:80:80"), (80, HostPort::Fixed(80), Some("::1".into()), Protocol::Tcp));
        assert_eq!(one("53:53/udp"), (53, HostPort::Fixed(53), None, Protocol::Udp));
        assert_eq!(one("8000-8010:80"), (80, HostPort::Range(8000, 8010), None, Protocol::Tcp));
        let three: Vec<_> = short("8000-8002:9000-9002").unwrap().iter().map(|p| (p.published, p.target)).collect();
        let fixed = HostPort::Fixed;
        assert_eq!(three, [(fixed(8000), 9000), (fixed(8001), 9001), (fixed(8002), 9002)]);
        assert_eq!(short("3000-3001").unwrap().len(), 2);
        for bad in
            ["0", "70000", "a:b", "", ":", "80:", "1:2:3:4", "x:1:2", "80/sctp", "9-8", "1-3:1-2", "+80", "[::1]80"]
        {
            assert!(short(bad).is_err(), "{bad}");
        }
    }
}

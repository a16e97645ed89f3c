//! The one call of EC2: the public address of a network interface.

use std::net::IpAddr;

use tokio::time::Instant;

use super::{Aws, Called, Service, xml};

impl Aws {
    /// The public address of an interface; none while it has none.
    pub(crate) async fn public_address(&self, interface: &str, deadline: Instant) -> Called<Option<IpAddr>> {
        let form = form(interface);
        let answer = self.query(Service::Ec2, "DescribeNetworkInterfaces", &form, deadline).await?;
        Ok(address(&answer))
    }
}

/// Ids are letters, digits and dashes; anything else is left out.
fn form(interface: &str) -> String {
    let id: String = interface.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("Action=DescribeNetworkInterfaces&Version=2016-11-15&NetworkInterfaceId.1={id}")
}

fn address(answer: &str) -> Option<IpAddr> {
    xml::inside(answer, "association").and_then(|part| xml::text(part, "publicIp"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{address, form};

    #[test]
    fn the_public_address_is_that_of_the_association() {
        let answer = "<R><networkInterfaceSet><item><privateIpAddress>10.0.0.1</privateIpAddress><association>\
                      <publicIp>203.0.113.9</publicIp><ipOwnerId>amazon</ipOwnerId></association></item></networkInterfaceSet></R>";
        assert_eq!(address(answer), Some("203.0.113.9".parse().unwrap()));
        for none in ["<R/>", "<association></association>", "<association><publicIp>x</publicIp></association>"] {
            assert_eq!(address(none), None, "{none}");
        }
        assert!(form("eni-1&Action=Evil").ends_with("NetworkInterfaceId.1=eni-1ActionEvil"));
    }
}

//! Sandboxes that reach each other, and what leads into them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use sandbox_core::{ErrorKind, ExecRequest, NetworkMode, NetworkRequest, PortEvent};

use super::cases;
use crate::{
    check::{Check, Stop, ensure_refused},
    context::Context,
    host::within,
    sandbox::{RUN_WITHIN, TestSandbox},
};

cases! { "network":
    sandboxes_of_one_reach_each_other, "H13, contract: Capabilities, networks", field NetworkNamed, capability Networks;
    sandboxes_of_two_do_not, "E03, contract: Capabilities, networks", field NetworkNamed, capability Networks;
    alias_is_known_while_it_is_attached, "H13, contract: Capabilities, networks", capability Networks;
    address_and_hosts_lead_to_the_other_sandbox, "contract: Capabilities, network", capability Network;
    forwarded_bytes_go_both_ways, "contract: Capabilities, port_forwarding", capability PortForwarding;
    shared_folder_is_seen_by_two, "contract: Capabilities, shared_storage", field ProviderOptions, capability SharedStorage;
}

/// The port that everything here listens on, inside.
const PORT: u16 = 7878;

/// Says back in capitals what it hears, until the other side has said everything.
const ECHO: &str = "use IO::Socket::INET;
my $s = IO::Socket::INET->new(Listen => 9, LocalPort => 7878, ReuseAddr => 1) or die;
open(my $r, '>', 'ready'); close($r);
while (my $c = $s->accept) { while (sysread($c, my $b, 4096)) { syswrite($c, uc $b) } close($c) }";

const ASK: &str = "use IO::Socket::INET;
my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 7878, Timeout => 10) or exit 7;
syswrite($s, 'hello'); $s->shutdown(1); local $/; print <$s>";

async fn listen(sandbox: &TestSandbox) -> Check {
    sandbox.needs_program("perl").await?;
    sandbox.put("echo.pl", ECHO.as_bytes()).await?;
    sandbox.bytes("perl echo.pl >/dev/null 2>&1 &").await?;
    ensure!(sandbox.eventually(Duration::from_secs(20), "test -e ready").await?, "a listener does not start");
    Ok(())
}

/// What the listener of a host says; none when it is not reached.
async fn ask(sandbox: &TestSandbox, host: &str) -> Check<Option<String>> {
    let result = sandbox.run(ExecRequest::argv(["perl", "-e", ASK, host])).await?;
    Ok(result.outcome().is_success().then(|| result.stdout_text().into_owned()))
}

struct Net<'a> {
    cx: &'a Context,
    name: String,
}

impl<'a> Net<'a> {
    async fn new(cx: &'a Context, name: &str) -> Check<Self> {
        let name = format!("conformance-{name}-{}", cx.token());
        let networks = cx.provider().as_networks().ok_or_else(|| Stop::failed("it is declared, but not there"))?;
        networks.create_network(NetworkRequest { name: name.clone(), ..Default::default() }).await?;
        Ok(Self { cx, name })
    }

    async fn sandbox(&self, name: &str) -> Check<TestSandbox> {
        let mut spec = self.cx.spec();
        spec.name = self.cx.honours(sandbox_core::Field::Name).then(|| format!("{name}-{}", self.cx.token()));
        spec.network = Some(NetworkMode::Named(self.name.clone()));
        self.cx.sandbox_with(spec).await
    }

    async fn remove(self) -> Check {
        let networks = self.cx.provider().as_networks().ok_or_else(|| Stop::failed("it is not there any more"))?;
        Ok(networks.remove_network(self.name).await?)
    }
}

async fn sandboxes_of_one_reach_each_other(cx: Context) -> Check {
    let net = Net::new(&cx, "one").await?;
    let (server, client) = (net.sandbox("server").await?, net.sandbox("client").await?);
    let answer = async {
        listen(&server).await?;
        let name = format!("server-{}", cx.token());
        // A network that was made just now may need a moment before it carries anything.
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            match ask(&client, &name).await? {
                None if Instant::now() < end => tokio::time::sleep(Duration::from_millis(200)).await,
                answer => return Ok::<_, Stop>(answer),
            }
        }
    };
    let answer = answer.await;
    server.close().await?;
    client.close().await?;
    net.remove().await?;
    ensure_eq!(answer?.as_deref(), Some("HELLO"), "what the other sandbox answers, asked by its name");
    Ok(())
}

async fn sandboxes_of_two_do_not(cx: Context) -> Check {
    let (net, other) = (Net::new(&cx, "one").await?, Net::new(&cx, "two").await?);
    let (server, stranger) = (net.sandbox("server").await?, other.sandbox("stranger").await?);
    let answer = async {
        listen(&server).await?;
        // Its addresses, as it sees them itself.
        let addresses =
            server.text("cat /proc/net/fib_trie | grep -B1 '32 host LOCAL' | grep -o '[0-9.]*$' | sort -u").await;
        let mut answers = vec![ask(&stranger, &format!("server-{}", cx.token())).await?];
        for address in addresses?.lines().filter(|address| address.contains('.') && !address.starts_with("127.")) {
            answers.push(ask(&stranger, address).await?);
        }
        Ok::<_, Stop>(answers)
    };
    let answers = answer.await;
    server.close().await?;
    stranger.close().await?;
    net.remove().await?;
    other.remove().await?;
    let answers = answers?;
    ensure!(answers.len() > 1, "the addresses of a sandbox are not found");
    ensure!(answers.iter().all(Option::is_none), "a sandbox of another network was reached: {answers:?}");
    Ok(())
}

async fn alias_is_known_while_it_is_attached(cx: Context) -> Check {
    let net = Net::new(&cx, "one").await?;
    let networks = cx.provider().as_networks().ok_or_else(|| Stop::failed("it is declared, but not there"))?;
    let (server, client) = (cx.sandbox().await?, net.sandbox("client").await?);
    let answers = async {
        listen(&server).await?;
        networks.attach_network(server.handle(), net.name.clone(), vec!["store".to_owned()]).await?;
        let attached = ask(&client, "store").await?;
        networks.detach_network(server.handle(), net.name.clone()).await?;
        Ok::<_, Stop>((attached, ask(&client, "store").await?))
    };
    let answers = answers.await;
    let missing = networks.attach_network(server.handle(), format!("none-{}", cx.token()), vec![]).await;
    server.close().await?;
    client.close().await?;
    net.remove().await?;
    let (attached, detached) = answers?;
    ensure_eq!(attached.as_deref(), Some("HELLO"), "what a sandbox answers under its alias");
    ensure!(detached.is_none(), "a sandbox was reached after it was detached");
    ensure_refused(missing, &[ErrorKind::NotFound], "a network that is not there")?;
    Ok(())
}

async fn address_and_hosts_lead_to_the_other_sandbox(cx: Context) -> Check {
    let network = cx.provider().as_network().ok_or_else(|| Stop::failed("it is declared, but not there"))?;
    if let Err(error) = network.validate_networking().await {
        ensure!(
            matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput),
            "networking is refused without the setting: {error:?}"
        );
        return Err(Stop::skipped(format!("this configuration has none: {}", error.message())));
    }
    let (server, client) = (cx.sandbox().await?, cx.sandbox().await?);
    listen(&server).await?;
    let address = network.network_address(server.handle()).await?;
    ensure_eq!(
        ask(&client, &address).await?.as_deref(),
        Some("HELLO"),
        "what the other sandbox answers by its address"
    );
    let hosts = |name: &str| BTreeMap::from([(name.to_owned(), address.clone())]);
    network.set_hosts(client.handle(), hosts("first.test")).await?;
    network.set_hosts(client.handle(), hosts("second.test")).await?;
    ensure_eq!(ask(&client, "second.test").await?.as_deref(), Some("HELLO"), "what it answers by a name that was set");
    ensure!(ask(&client, "first.test").await?.is_none(), "a name that was replaced still leads somewhere");
    Ok(())
}

async fn forwarded_bytes_go_both_ways(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    listen(&sandbox).await?;
    let forwarding = cx.provider().as_port_forwarding().ok_or_else(|| Stop::failed("it is declared, but not there"))?;
    let mut stream = within(RUN_WITHIN, "the connection", forwarding.open_port(sandbox.handle(), PORT)).await??;
    stream.write("hello ").await?;
    stream.write("there").await?;
    stream.close_input().await?;
    let mut heard = Vec::new();
    while let Some(event) = within(RUN_WITHIN, "the answer", stream.next()).await?? {
        if let PortEvent::Data(bytes) = event {
            heard.extend_from_slice(&bytes);
        }
    }
    ensure_eq!(heard.escape_ascii().to_string(), "HELLO THERE", "what comes back until the end");
    Ok(())
}

async fn shared_folder_is_seen_by_two(cx: Context) -> Check {
    let storage = cx.provider().as_shared_storage().ok_or_else(|| Stop::failed("it is declared, but not there"))?;
    let claim = format!("conformance/{}", cx.token());
    let spec = async |source: Option<String>, read_only| {
        let options = storage.shared_volume_options(source, "/conformance-shared".to_owned(), read_only).await?;
        let mut spec = cx.spec();
        let options = options.as_object().cloned().ok_or_else(|| Stop::failed("the options are no JSON object"))?;
        spec.provider_options.extend(options);
        spec.metadata.extend(storage.shared_volume_metadata().await?);
        Ok::<_, Stop>(spec)
    };
    let writer = cx.sandbox_with(spec(Some(claim.clone()), false).await?).await?;
    let reader = cx.sandbox_with(spec(Some(claim), true).await?).await?;
    writer.bytes("echo shared > /conformance-shared/f").await?;
    ensure_eq!(reader.text("cat /conformance-shared/f").await?, "shared", "a file that the other sandbox has written");
    let refused = reader.sh("echo x > /conformance-shared/f").await?;
    ensure!(!refused.outcome().is_success(), "what is mounted read-only was written to");
    writer.bytes("rm /conformance-shared/f").await?;
    let outside = storage.shared_volume_options(Some("../outside".to_owned()), "/x".to_owned(), true).await;
    ensure_refused(outside, &[ErrorKind::InvalidInput], "a source outside of the shared storage")?;
    Ok(())
}

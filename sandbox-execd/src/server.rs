//! Connections.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sandbox_agent::LocalAgent;
use tokio::{net::TcpListener, sync::Semaphore};

use crate::{
    execd::{Execd, Settings},
    output,
};

/// Connections at once. Those in excess wait for their turn.
const CONNECTIONS_MAX: usize = 4096;

/// How long the head of a request may take.
const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// Pause after a failed accept: out of descriptors is not over at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until the sandbox is over. With a main process its output is this process's own.
pub(crate) async fn run(listener: std::net::TcpListener, agent: LocalAgent, settings: Settings, has_main: bool) {
    let opened = TcpListener::from_std(listener).map_err(|error| error.to_string());
    let connected = agent.connect().await.map_err(|error| error.to_string());
    let (listener, client) = match (opened, connected) {
        (Ok(listener), Ok(client)) => (listener, client),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("execd: {error}");
            return;
        }
    };
    let output = has_main.then(|| tokio::spawn(output::pass_on(client.clone())));
    let execd = Execd::new(settings, agent.clone(), client);
    tokio::select! {
        () = accept(listener, execd) => {}
        () = agent.over() => {}
    }
    if let Some(output) = output {
        // It ends with the main process, behind its last words.
        let _ = output.await;
    }
}

async fn accept(listener: TcpListener, execd: Arc<Execd>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // An event is not held back to be sent with others; a socket that cannot promise that works too.
        let _ = stream.set_nodelay(true);
        let execd = execd.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let execd = execd.clone();
                async move { Ok::<_, Infallible>(execd.handle(request).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_WITHIN)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            // That a client went away is no concern of ours.
            let _ = connection.await;
            drop(place);
        });
    }
}

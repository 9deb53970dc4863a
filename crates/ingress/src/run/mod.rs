//! `weir-ingress run`: watches a cluster and keeps a running weir at what the cluster says.
//!
//! - `watch` keeps the objects, and tells when one has changed; `kinds` does so for Gateway API, whose kinds come and go.
//! - `servers` keeps the files with the addresses of pods, which running workers follow. Most changes of pods end there.
//! - `serve` waits a moment for more changes, translates what has changed, and hands the text to weir through a `door`. What
//!   weir refuses changes nothing. The object that asked for it is left out (`refusals`), or a key of the controller's ConfigMap
//!   (`map`), and the rest is served.
//! - `events`, `status`, `told` and `services` write back into the cluster. Only the pod that holds the `lease` does; each pod serves
//!   by itself, and goes on with what it has while the API server is gone.
//! - `health` answers probes and shows counters, with those of weir under the names of ingress-nginx (`figures`). `admission` tells authors of Ingresses what is wrong before it is stored.

mod admission;
mod cluster;
mod denials;
mod door;
mod events;
mod figures;
mod files;
mod health;
mod kinds;
mod lease;
mod map;
mod refusals;
mod serve;
mod servers;
mod services;
mod shared;
mod slices;
mod status;
mod told;
mod watch;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::channel;

pub use shared::{Options, Publish};
use shared::{Shared, say};

/// Runs until a signal ends it.
pub fn run(options: Options) -> Result<(), String> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.install_default().map_err(|_| "another TLS provider is in use".to_owned())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(start(options))
}

/// Ports that listeners cannot have: those of the two programs themselves, and those that stand for other ports.
fn closed_ports(options: &Options) -> BTreeSet<u16> {
    let mut closed = BTreeSet::from([options.health.port()]);
    closed.extend(options.admission.as_ref().map(|(address, _)| address.port()));
    let mapped = &options.settings.gateway_ports;
    closed.extend(mapped.values().filter(|port| !mapped.contains_key(port)));
    let blocks = options.settings.base.iter().filter(|d| d.name.is("http") || d.name.is("stream"));
    let servers = blocks.flat_map(|d| d.block()).filter(|d| d.name.is("server"));
    for listen in servers.flat_map(|d| d.block()).filter(|d| d.name.is("listen")) {
        let Some(word) = listen.arg(0).map(|word| word.lossy()) else { continue };
        let port = word.rsplit(':').next().unwrap_or_default();
        closed.extend(port.parse::<u16>().ok());
    }
    closed
}

async fn start(mut options: Options) -> Result<(), String> {
    let tree = weir_conf::read(&options.base, None);
    if let Some(error) = &tree.broken {
        return Err(tree.sources.explain(error));
    }
    options.settings.base = tree.main;
    if let Some(name) = options.settings.missing_issuer() {
        let file = options.base.display();
        return Err(format!(
            "--acme-issuer: {file} has no acme_issuer \"{name}\" in its http block"
        ));
    }
    options.settings.servers_in_files = true;
    options.settings.closed_ports.extend(closed_ports(&options));
    let mut config = Config::infer().await.map_err(|error| error.to_string())?;
    config.connect_timeout = Some(Duration::from_secs(5));
    // Longer than a watch may be silent: its server ends it before.
    config.read_timeout = Some(Duration::from_secs(watch::LONGEST_WATCH + 30));
    config.reset_reader_on_write = true;
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    let shared = Arc::new(Shared {
        cluster: cluster::Cluster::default(),
        counters: health::Counters::default(),
        servers: Mutex::new(servers::ServerFiles::new(&options.settings)),
        leads: channel(false).0,
        report: channel(Arc::default()).0,
        obstacles: Mutex::default(),
        ends: AtomicBool::new(false),
    });
    let mut term = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut quit = signal(SignalKind::quit()).map_err(|error| error.to_string())?;
    let mut int = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    health::listen(&options, shared.clone()).await?;
    if let Some((address, dir)) = options.admission.clone() {
        admission::listen(address, dir, options.clone(), shared.clone()).await?;
    }
    watch::all(&client, &options, &shared);
    let lease = tokio::spawn(lease::hold(client.clone(), options.clone(), shared.clone()));
    tokio::spawn(events::publish(client.clone(), options.identity.clone(), shared.clone()));
    tokio::spawn(status::write(client.clone(), options.publish.clone(), shared.clone()));
    let controller = options.settings.gateway_controllers.first().cloned().unwrap_or_default();
    let makes_services = options.services.is_some();
    tokio::spawn(told::write(client.clone(), controller.clone(), makes_services, shared.clone()));
    if let Some(template) = options.services.clone() {
        tokio::spawn(services::write(client.clone(), controller, template, shared.clone()));
    }
    tokio::spawn(serve::serve(options.clone(), shared.clone()));
    tokio::select! {
        _ = term.recv() => {}
        _ = quit.recv() => {}
        _ = int.recv() => {}
    }
    say("notice", "ends: not ready any more");
    shared.ends.store(true, Ordering::Relaxed);
    // A pod that stays writes into the cluster, however long this one goes on.
    lease.abort();
    lease::release(client, &options, &shared).await;
    // Changes go on to weir, which still serves clients that have not seen the pod leave.
    tokio::select! {
        () = tokio::time::sleep(options.drain) => {}
        _ = term.recv() => {}
        _ = quit.recv() => {}
    }
    Ok(())
}

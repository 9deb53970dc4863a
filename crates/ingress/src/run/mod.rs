//! `weir-ingress run`: watches a cluster and keeps a running weir's configuration up to date with
//! it.
//!
//! - `watch` watches the objects and notifies `serve` of changes. `gateway_kinds` does the same for
//!   Gateway API, whose kinds may be defined and removed at any time.
//! - `servers` writes the addresses of pods into files, which running workers follow. Most changes
//!   of pods need nothing else.
//! - `serve` collects changes for a moment, translates the objects and sends the text to weir
//!   (`weir_api`). A configuration that weir refuses changes nothing. The object at fault is left
//!   out (`refusals`), or the key of the controller's ConfigMap (`refused_keys`), and the rest is
//!   served.
//! - `events`, `status`, `gateway_status` and `services` write into the cluster. Only the leader
//!   does, the pod that holds the `lease`. Each pod serves by itself, and keeps serving while the
//!   API server is unreachable.
//! - `health` answers probes and serves metrics, weir's among them under ingress-nginx's names
//!   (`nginx_metrics`). `admission` is the webhook that refuses wrong Ingresses before they are
//!   stored.

mod admission;
mod cluster;
mod denials;
mod events;
mod files;
mod gateway_kinds;
mod gateway_status;
mod health;
mod lease;
mod nginx_metrics;
mod refusals;
mod refused_keys;
mod serve;
mod servers;
mod services;
mod shared;
mod slices;
mod status;
mod watch;
mod weir_api;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};

pub use shared::{Options, Publish};
use shared::{Shared, say};

/// Runs until a signal ends the process.
pub fn run(options: Options) -> Result<(), String> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.install_default().map_err(|_| "another TLS provider is in use".to_owned())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(start(options))
}

/// Ports that listeners of Gateways cannot have: those of `weir-ingress` and weir themselves, and
/// those that `--gateway-ports` maps other ports to.
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
    // Longer than the API server keeps a silent watch open.
    config.read_timeout = Some(Duration::from_secs(watch::LONGEST_WATCH + 30));
    config.reset_reader_on_write = true;
    // `kube` would repeat calls by itself while the API server answers 429, 503 or 504. Its waits
    // grow to minutes, and no failure would be told meanwhile.
    config.default_retry = false;
    let client = Client::try_from(config).map_err(|error| error.to_string())?;
    let shared = Arc::new(Shared::new(&options.settings));
    let mut term = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut quit = signal(SignalKind::quit()).map_err(|error| error.to_string())?;
    let mut int = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    health::listen(&options, shared.clone()).await?;
    if let Some((address, dir)) = options.admission.clone() {
        admission::listen(address, dir, options.clone(), shared.clone()).await?;
    }
    watch::start_all(&client, &options, &shared);
    let lease = tokio::spawn(lease::hold(client.clone(), options.clone(), shared.clone()));
    tokio::spawn(events::publish(client.clone(), options.identity.clone(), shared.clone()));
    tokio::spawn(status::write(client.clone(), options.publish.clone(), shared.clone()));
    let controller = options.settings.gateway_controllers.first().cloned().unwrap_or_default();
    let makes_services = options.services.is_some();
    tokio::spawn(gateway_status::write(
        client.clone(),
        controller.clone(),
        makes_services,
        shared.clone(),
    ));
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
    // The next leader writes into the cluster, however long this pod drains.
    lease.abort();
    lease::release(client, &options, &shared).await;
    // While it drains, weir still gets changes: clients that have not seen the pod leave are
    // served.
    tokio::select! {
        () = tokio::time::sleep(options.drain) => {}
        _ = term.recv() => {}
        _ = quit.recv() => {}
    }
    Ok(())
}

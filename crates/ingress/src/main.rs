//! `weir-ingress`: translates Kubernetes objects into a configuration of weir.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use weir_ingress::certificate;
use weir_ingress::gateway::ranges::AddressRange;
use weir_ingress::gateway::services::Template;
use weir_ingress::names::NameServers;
use weir_ingress::run::{Options, Publish, run};
use weir_ingress::{Finding, Settings, Severity, Snapshot, Translation, translate};
use weir_sys::allocator::Mimalloc;

/// A translation of thousands of objects makes a million small allocations. mimalloc returns the
/// freed memory to the system.
#[global_allocator]
static ALLOCATOR: Mimalloc = Mimalloc;

/// Translates Kubernetes objects into a configuration of weir.
#[derive(Debug, Parser)]
#[command(name = "weir-ingress", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reports how each Ingress in a folder of manifests would differ from ingress-nginx, and the conditions of Gateway API objects.
    Check(Input),
    /// Prints the configuration for the manifests in a folder.
    Print(Input),
    /// Prints Gateway API objects for the Ingresses in a folder, and reports settings without a counterpart there.
    Convert(Input),
    /// Watches a cluster, and keeps a running weir's configuration up to date.
    Run(Box<Run>),
}

#[derive(Debug, Args)]
struct Input {
    /// A folder of manifests (YAML or JSON), or one file.
    folder: PathBuf,
    /// The directory of certificates and password files; `print` writes them there if it is given.
    #[arg(long)]
    state: Option<PathBuf>,
    /// The ConfigMap of the folder with defaults for all Ingresses: NAMESPACE/NAME.
    #[arg(long, value_parser = object)]
    configmap: Option<(String, String)>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// An address and port to listen on for plain HTTP; may be given several times.
    #[arg(long, default_values = ["80", "[::]:80"])]
    http: Vec<String>,
    /// An address and port to listen on for TLS; may be given several times.
    #[arg(long, default_values = ["443", "[::]:443"])]
    https: Vec<String>,
    /// An address that Gateways listen on, without a port; may be given several times. By default all.
    #[arg(long)]
    gateway_address: Vec<String>,
    /// The port to listen on in place of a listener's port: LISTENER=PORT; may be given several times.
    #[arg(long, value_parser = ports)]
    gateway_port: Vec<(u16, u16)>,
    /// The port of plain HTTP that clients know, if it is not the listening port.
    #[arg(long)]
    http_port: Option<u16>,
    /// The port of TLS that clients know. Redirects to https name it.
    #[arg(long, default_value_t = 443)]
    https_port: u16,
    /// Allows upstream servers at loopback addresses.
    #[arg(long)]
    allow_loopback: bool,
    /// The zone of this pod. If the pods of a Service have hints for zones, those with a hint for this zone are used.
    #[arg(long)]
    zone: Option<String>,
    /// Lets Ingresses of several namespaces share a host, as ingress-nginx does.
    #[arg(long)]
    shared_hosts: bool,
    /// The Secret for hosts without a certificate: NAMESPACE/NAME.
    #[arg(long, value_parser = object)]
    default_ssl_certificate: Option<(String, String)>,
    /// The Service for hosts and paths without a rule: NAMESPACE/NAME.
    #[arg(long, value_parser = object)]
    default_backend_service: Option<(String, String)>,
    /// A directive that snippets may have; may be given several times. Without it, no snippet is allowed.
    #[arg(long)]
    allow_snippet_directive: Vec<String>,
    /// Arguments of `resolver`, for Services of the type ExternalName and for authentication services. By default the name servers of /etc/resolv.conf.
    #[arg(long)]
    resolver: Vec<String>,
    /// The `spec.controller` of the classes that are served; may be given several times.
    #[arg(long, default_values = ["weir.internal/ingress", "k8s.io/ingress-nginx"])]
    controller_class: Vec<String>,
    /// The `spec.controllerName` of the GatewayClasses that are served.
    #[arg(long, default_value = "weir.internal/gateway", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    gateway_controller: String,
    /// The value of the annotation kubernetes.io/ingress.class that is served, beside the names of served classes.
    #[arg(long)]
    ingress_class: Option<String>,
    /// Also serves ingressClassName with the value of --ingress-class, whatever the controller of that class is.
    #[arg(long, requires = "ingress_class", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true)]
    ingress_class_by_name: bool,
    /// Serves Ingresses without a class, too.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true)]
    watch_ingress_without_class: bool,
    /// Serves only the Ingresses of namespaces with these labels: NAME=VALUE, separated by commas.
    #[arg(long, value_parser = label, value_delimiter = ',')]
    watch_namespace_selector: Vec<(String, String)>,
    /// Leaves out Ingresses for all hosts.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true)]
    disable_catch_all: bool,
    /// Leaves out Services of the type ExternalName.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true)]
    disable_svc_external_name: bool,
    /// Obeys the annotation ssl-passthrough: reads the server name of TLS connections, and passes those for such hosts through.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set, hide_default_value = true)]
    enable_ssl_passthrough: bool,
    /// The ConfigMap that maps ports of TCP to Services: NAMESPACE/NAME.
    #[arg(long, value_parser = object)]
    tcp_services_configmap: Option<(String, String)>,
    /// The same for UDP.
    #[arg(long, value_parser = object)]
    udp_services_configmap: Option<(String, String)>,
}

impl Common {
    fn settings(&self) -> Settings {
        let found = NameServers::read(Path::new("/etc/resolv.conf"));
        let mut settings = Settings {
            http: self.http.clone(),
            https: self.https.clone(),
            http_port: self.http_port,
            https_port: self.https_port,
            loopback: self.allow_loopback,
            zone: self.zone.clone().filter(|zone| !zone.is_empty()),
            shared_hosts: self.shared_hosts,
            default_certificate: self.default_ssl_certificate.clone(),
            default_backend: self.default_backend_service.clone(),
            snippet_directives: self.allow_snippet_directive.iter().cloned().collect(),
            resolver: match self.resolver.is_empty() {
                true => found.addresses,
                false => self.resolver.clone(),
            },
            cluster_domain: found.cluster_domain,
            controllers: self.controller_class.clone(),
            gateway_controllers: vec![self.gateway_controller.clone()],
            class: self.ingress_class.clone(),
            class_by_name: self.ingress_class_by_name,
            without_class: self.watch_ingress_without_class,
            namespace_labels: self.watch_namespace_selector.iter().cloned().collect(),
            no_catch_all: self.disable_catch_all,
            no_external_names: self.disable_svc_external_name,
            sessions: [self.tcp_services_configmap.clone(), self.udp_services_configmap.clone()],
            passthrough: self.enable_ssl_passthrough,
            gateway_ports: self.gateway_port.iter().copied().collect(),
            access_log: "/dev/stdout".to_owned(),
            ..Settings::default()
        };
        if !self.gateway_address.is_empty() {
            settings.gateway_addresses.clone_from(&self.gateway_address);
        }
        settings
    }
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    common: Common,
    /// The configuration file that weir was started with. Its directives take precedence.
    #[arg(long, default_value = "/etc/weir/ingress.conf")]
    base: PathBuf,
    /// weir's socket with `weir_api config`.
    #[arg(long, default_value = "/run/weir/api.sock")]
    weir: PathBuf,
    /// The directory of certificates and password files, which must be this program's alone.
    #[arg(long, default_value = "/run/weir/files")]
    state: PathBuf,
    /// The acme_issuer in the configuration file for hosts whose Ingresses name no Secret.
    #[arg(long)]
    acme_issuer: Option<String>,
    /// The address and port of /healthz, /readyz and /metrics.
    #[arg(long, default_value = "0.0.0.0:10254")]
    health: SocketAddr,
    /// The address and port of the admission webhook for Ingresses.
    #[arg(long, requires = "admission_certificate")]
    admission: Option<SocketAddr>,
    /// The directory with tls.crt and tls.key of the admission webhook.
    #[arg(long)]
    admission_certificate: Option<PathBuf>,
    /// Gives each Gateway an address of its own, from a range such as 10.0.0.0/24 or one address; may be given several times.
    #[arg(long, conflicts_with = "gateway_address")]
    gateway_addresses: Vec<AddressRange>,
    /// Makes a Service for each Gateway, with the labels and annotations of its `infrastructure`.
    #[arg(long)]
    gateway_services: bool,
    /// The type of these Services.
    #[arg(long, requires = "gateway_services", default_value = "ClusterIP", value_parser = ["ClusterIP", "NodePort", "LoadBalancer"])]
    gateway_service_type: String,
    /// A label in the selector of these Services, which are in the Gateway's namespace: KEY=VALUE; may be given several times.
    #[arg(long, requires = "gateway_services", value_parser = label)]
    gateway_service_selector: Vec<(String, String)>,
    /// Watches only this namespace.
    #[arg(long)]
    watch_namespace: Option<String>,
    /// Does not watch objects without a namespace, so that no right for them is needed: IngressClasses, Namespaces, Gateway API.
    #[arg(long, requires = "watch_namespace", conflicts_with_all = ["watch_namespace_selector", "gateway_services"])]
    disable_cluster_scope_resources: bool,
    /// The ConfigMap with defaults for all Ingresses: NAMESPACE/NAME.
    #[arg(long, value_parser = object)]
    configmap: Option<(String, String)>,
    /// The Lease by which pods elect the leader, which writes into the cluster: NAMESPACE/NAME.
    #[arg(long, value_parser = object, default_value = "default/weir-ingress")]
    lease: (String, String),
    /// The name of this pod, if the environment variable POD_NAME is not set.
    #[arg(long, default_value = "weir-ingress")]
    identity: String,
    /// The Service whose addresses the status of Ingresses shows: NAMESPACE/NAME.
    #[arg(long, value_parser = object, conflicts_with = "publish_status_address")]
    publish_service: Option<(String, String)>,
    /// An address or name that the status of Ingresses shows; several are separated by commas, or it is given several times.
    #[arg(long, value_delimiter = ',')]
    publish_status_address: Vec<String>,
    /// Milliseconds for which changes are collected.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(..=10_000))]
    collect: u64,
    /// Seconds for which this program keeps running after SIGTERM. It is not ready meanwhile.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3600))]
    drain: u64,
}

/// `LISTENER=PORT`.
fn ports(text: &str) -> Result<(u16, u16), String> {
    let parts = text.split_once('=').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parts.filter(|(a, b)| *a != 0 && *b != 0).ok_or_else(|| "it must be LISTENER=PORT".to_owned())
}

/// `NAME=VALUE`.
fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.trim().split_once('=').filter(|(name, _)| !name.is_empty());
    let parts =
        parts.map(|(name, value)| (name.to_owned(), value.trim_start_matches('=').to_owned()));
    parts.ok_or_else(|| "it must be NAME=VALUE".to_owned())
}

/// `NAMESPACE/NAME`.
fn object(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("it must be NAMESPACE/NAME".to_owned()),
    }
}

impl Run {
    fn options(self) -> Options {
        let publish = match (self.publish_service, self.publish_status_address) {
            (Some((namespace, name)), _) => Publish::Service(namespace, name),
            (None, list) if !list.is_empty() => Publish::Addresses(list),
            (None, _) => Publish::Nothing,
        };
        Options {
            settings: Settings {
                state: self.state,
                acme_issuer: self.acme_issuer.filter(|name| !name.is_empty()),
                own_certificate: certificate::make(),
                gateway_ranges: self.gateway_addresses,
                ..self.common.settings()
            },
            base: self.base,
            weir_socket: self.weir,
            health: self.health,
            admission: self.admission.zip(self.admission_certificate),
            namespace: self.watch_namespace,
            cluster_scope: !self.disable_cluster_scope_resources,
            config_map: self.configmap,
            lease: self.lease,
            identity: std::env::var("POD_NAME").unwrap_or(self.identity),
            pod_address: std::env::var("POD_IP").ok().filter(|address| !address.is_empty()),
            publish,
            services: self.gateway_services.then(|| Template {
                kind: self.gateway_service_type,
                selector: self.gateway_service_selector.into_iter().collect::<BTreeMap<_, _>>(),
            }),
            collect: Duration::from_millis(self.collect),
            drain: Duration::from_secs(self.drain),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Check(input) => check(&input),
        Command::Print(input) => print(&input),
        Command::Convert(input) => convert(&input),
        Command::Run(input) => run(input.options()).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("weir-ingress: {error}");
        ExitCode::FAILURE
    })
}

fn read(input: &Input) -> Result<(Snapshot, Settings, bool), String> {
    let read = Snapshot::read(&input.folder);
    let (snapshot, problems) = read.map_err(|e| format!("{}: {e}", input.folder.display()))?;
    problems.iter().for_each(|problem| eprintln!("weir-ingress: {problem}"));
    let mut settings = input.common.settings();
    // Manifests of an application rarely include the IngressClass, which belongs to the cluster.
    settings.without_class |= snapshot.classes.is_empty();
    settings.any_class = snapshot.classes.is_empty() && settings.class.is_none();
    if let Some(state) = &input.state {
        settings.state.clone_from(state);
        settings.own_certificate = certificate::make();
    }
    settings.config_map.clone_from(&input.configmap);
    if let Some((namespace, name)) = &input.configmap {
        settings.defaults = snapshot
            .config_map(namespace, name)
            .ok_or_else(|| format!("there is no ConfigMap {namespace}/{name}"))?
            .data
            .clone()
            .unwrap_or_default();
    }
    Ok((snapshot, settings, problems.is_empty()))
}

fn load(input: &Input) -> Result<(Translation, bool), String> {
    let (snapshot, settings, whole) = read(input)?;
    Ok((translate(&snapshot, &settings), whole))
}

fn check(input: &Input) -> Result<ExitCode, String> {
    let (snapshot, mut settings, whole) = read(input)?;
    // In a cluster, hosts without a certificate have one of the program's own making.
    settings.own_certificate = settings.own_certificate.or_else(certificate::make);
    let translation = translate(&snapshot, &settings);
    let mut out = String::new();
    for id in &translation.served {
        let own: Vec<_> = translation.findings.iter().filter(|f| f.object == *id).collect();
        let worst = own.iter().map(|finding| finding.severity).max();
        let verdict = match worst {
            None | Some(Severity::Note) => "works the same",
            Some(Severity::Warning) => "differs",
            Some(Severity::Error) => "is served in part",
        };
        out.push_str(&format!("{id}: {verdict}\n"));
        for finding in own {
            out.push_str(&format!(
                "  {:<8} {:<32} {}\n",
                finding.severity, finding.about, finding.message
            ));
        }
    }
    for finding in translation.findings.iter().filter(|f| !translation.served.contains(&f.object)) {
        out.push_str(&format!(
            "{}: {} {}: {}\n",
            finding.object, finding.severity, finding.about, finding.message
        ));
    }
    let (table, good) = translation.statuses.table();
    out.push_str(&table);
    write(out.as_bytes())?;
    let broken =
        !good || translation.findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if broken || !whole { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn tell(findings: &[Finding]) {
    for finding in findings {
        eprintln!(
            "{}: {} {}: {}",
            finding.object, finding.severity, finding.about, finding.message
        );
    }
}

fn convert(input: &Input) -> Result<ExitCode, String> {
    let (snapshot, settings, whole) = read(input)?;
    let converted = weir_ingress::convert::convert(&snapshot, &settings);
    tell(&converted.findings);
    let mut text = String::new();
    for object in &converted.objects {
        text.push_str(&format!("---\n{}\n", as_yaml(&format!("{object:#}"))));
    }
    write(text.as_bytes())?;
    let lost = converted.findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if lost || !whole { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// JSON as YAML, which takes some characters in their escaped form alone.
fn as_yaml(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => text.push(c),
        }
    }
    text
}

fn print(input: &Input) -> Result<ExitCode, String> {
    let (translation, whole) = load(input)?;
    tell(&translation.findings);
    let text = translation.text.print().map_err(|error| error.to_string())?;
    if input.state.is_some() {
        weir_ingress::state::write(&translation.files).map_err(|e| e.to_string())?;
    }
    write(&text)?;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(text: &[u8]) -> Result<(), String> {
    std::io::stdout().write_all(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_status_are_a_list() {
        let words = ["weir-ingress", "run", "--publish-status-address", "192.0.2.1,192.0.2.2"];
        let Command::Run(run) = Cli::try_parse_from(words).unwrap().command else { panic!() };
        let both = ["192.0.2.1", "192.0.2.2"].map(str::to_owned);
        assert_eq!(run.options().publish, Publish::Addresses(both.into()));
    }
}

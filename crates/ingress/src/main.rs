//! `weir-ingress`: Kubernetes objects to a configuration of weir.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use weir_ingress::{Finding, Settings, Severity, Snapshot, Translation, translate};

/// Kubernetes objects to a configuration of weir.
#[derive(Debug, Parser)]
#[command(name = "weir-ingress", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says for each Ingress of a folder of manifests what would differ from ingress-nginx, and which conditions objects of Gateway API have.
    Check(Input),
    /// Prints the configuration that the manifests of a folder make.
    Print(Input),
    /// Writes objects of Gateway API for the Ingresses of a folder, and says what has no counterpart there.
    Convert(Input),
}

#[derive(Debug, Args)]
struct Input {
    /// A folder of manifests (YAML or JSON), or one file.
    folder: PathBuf,
    /// Where plain HTTP is listened for; may be given several times.
    #[arg(long, default_values = ["80", "[::]:80"])]
    http: Vec<String>,
    /// Where TLS is listened for; may be given several times.
    #[arg(long, default_values = ["443", "[::]:443"])]
    https: Vec<String>,
    /// Addresses that Gateways listen on, without ports; may be given several times. Usually all.
    #[arg(long)]
    gateway_address: Vec<String>,
    /// The directory of certificates and password files; `print` writes them there if it is given.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Takes servers behind at loopback addresses, too.
    #[arg(long)]
    allow_loopback: bool,
    /// Lets Ingresses of several namespaces share a host, as ingress-nginx does.
    #[arg(long)]
    shared_hosts: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Check(input) => check(&input),
        Command::Print(input) => print(&input),
        Command::Convert(input) => convert(&input),
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
    let mut settings = Settings {
        http: input.http.clone(),
        https: input.https.clone(),
        loopback: input.allow_loopback,
        shared_hosts: input.shared_hosts,
        ..Settings::default()
    };
    // Manifests of an application rarely have the class, which is the cluster's.
    settings.without_class = snapshot.classes.is_empty();
    if !input.gateway_address.is_empty() {
        settings.gateway_addresses.clone_from(&input.gateway_address);
    }
    settings.state = input.state.clone().unwrap_or(settings.state);
    Ok((snapshot, settings, problems.is_empty()))
}

fn load(input: &Input) -> Result<(Translation, bool), String> {
    let (snapshot, settings, whole) = read(input)?;
    Ok((translate(&snapshot, &settings), whole))
}

fn check(input: &Input) -> Result<ExitCode, String> {
    let (translation, whole) = load(input)?;
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
    // JSON is YAML, too.
    let mut text = String::new();
    for object in &converted.objects {
        text.push_str(&format!("---\n{object:#}\n"));
    }
    write(text.as_bytes())?;
    let lost = converted.findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if lost || !whole { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(input: &Input) -> Result<ExitCode, String> {
    let (translation, whole) = load(input)?;
    tell(&translation.findings);
    let text = weir_conf::print(&translation.tree).map_err(|error| error.to_string())?;
    if input.state.is_some() {
        weir_ingress::state::write(&translation.files).map_err(|e| e.to_string())?;
    }
    write(&text)?;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write(text: &[u8]) -> Result<(), String> {
    std::io::stdout().write_all(text).map_err(|error| error.to_string())
}

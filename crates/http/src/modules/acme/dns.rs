//! The lines of `acme_issuer` for proofs by DNS.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_acme::{Challenge, Hook, Issuer, Publisher, TsigKey, UpdateServer};
use weir_conf::values::duration;
use weir_conf::{Directive, Error, Word};

use crate::config::Setup;

/// How long a hook may run without `dns_hook_timeout`.
const HOOK: Duration = Duration::from_secs(60);
/// The longest allowed wait for a record, and for a hook.
const LONGEST: Duration = Duration::from_secs(3600);

/// Reads one of these lines.
pub fn set(
    issuer: &mut Issuer,
    setup: &mut Setup<'_>,
    line: &Directive,
    word: &Word,
) -> Result<(), Error> {
    match &*line.name.lossy() {
        "dns_hook" => {
            let arguments = line.args.iter().skip(1).map(|word| word.lossy().into_owned());
            let (program, arguments) = (setup.path(&word.bytes), arguments.collect());
            publish(issuer, line, Publisher::Hook(Hook { program, arguments, deadline: HOOK }))
        }
        "dns_update" => {
            let server = update(setup, line, word)?;
            publish(issuer, line, Publisher::Update(server))
        }
        "dns_wait" => {
            issuer.dns.wait = match &word.bytes[..] {
                b"off" => None,
                _ => Some(time(line, word)?),
            };
            let servers = line.args.iter().skip(1).map(|word| address(line, word));
            issuer.dns.servers = servers.collect::<Result<_, _>>()?;
            Ok(())
        }
        _ => {
            let servers = line.args.iter().map(|word| address(line, word));
            issuer.dns.resolvers = servers.collect::<Result<_, _>>()?;
            Ok(())
        }
    }
}

/// Checks lines that depend on each other. `timeout` is the line `dns_hook_timeout`.
pub fn finish(
    issuer: &mut Issuer,
    block: &Directive,
    timeout: Option<&Directive>,
) -> Result<(), Error> {
    if let Some(line) = timeout {
        let Some(word) = line.arg(0) else { return Err(line.problem("invalid value")) };
        let deadline = time(line, word)?;
        match &mut issuer.dns.publisher {
            Some(Publisher::Hook(hook)) if !deadline.is_zero() => hook.deadline = deadline,
            Some(Publisher::Hook(_)) => return Err(line.invalid("value", word)),
            _ => return Err(line.error("\"dns_hook_timeout\" without \"dns_hook\"")),
        }
    }
    match (issuer.challenge, &issuer.dns.publisher) {
        (Challenge::Dns, None) => {
            let why = "acme_issuer: the challenge dns-01 needs \"dns_hook\" or \"dns_update\"";
            Err(block.error(why))
        }
        (Challenge::Dns, Some(_)) | (_, None) => Ok(()),
        (other, Some(_)) => {
            let other = other.name();
            let why = format!(
                "acme_issuer: \"dns_hook\" and \"dns_update\" are for the challenge dns-01, not {other}"
            );
            Err(block.error(why))
        }
    }
}

fn publish(issuer: &mut Issuer, line: &Directive, publisher: Publisher) -> Result<(), Error> {
    match issuer.dns.publisher.replace(publisher) {
        None => Ok(()),
        Some(_) => Err(line.error("either \"dns_hook\" or \"dns_update\" publishes records")),
    }
}

/// `dns_update SERVER[:PORT] [key=FILE] [zone=NAME]`
fn update(setup: &mut Setup<'_>, line: &Directive, word: &Word) -> Result<UpdateServer, Error> {
    let text = word.lossy();
    let server = match (text.parse::<SocketAddr>(), text.trim_matches(['[', ']']).parse::<IpAddr>())
    {
        (Ok(address), _) => address.to_string(),
        (_, Ok(ip)) => SocketAddr::new(ip, 53).to_string(),
        _ => {
            let (host, port) = text.split_once(':').unwrap_or((&text, "53"));
            let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            if host.is_empty() || !host.bytes().all(is_plain) || port.parse::<u16>().is_err() {
                return Err(line.invalid("server", word));
            }
            format!("{host}:{port}")
        }
    };
    let mut made = UpdateServer { server, zone: None, key: None };
    for word in line.args.iter().skip(1) {
        if let Some(file) = word.bytes.strip_prefix(b"key=") {
            let shown = setup.pem_files.shown(file);
            let text = setup.pem_files.read(file);
            let text = text
                .map_err(|why| line.error_at(word, format!("failed to open \"{shown}\" {why}")))?;
            let key = TsigKey::parse(&String::from_utf8_lossy(&text));
            made.key = Some(key.map_err(|why| {
                line.error_at(word, format!("invalid TSIG key \"{shown}\": {why}"))
            })?);
        } else if let Some(zone) = word.bytes.strip_prefix(b"zone=") {
            made.zone = Some(String::from_utf8_lossy(zone).into_owned());
        } else {
            return Err(line.invalid("parameter", word).hint("it may be: key=FILE, zone=NAME"));
        }
    }
    Ok(made)
}

fn time(line: &Directive, word: &Word) -> Result<Duration, Error> {
    let time = duration(&word.bytes).filter(|time| *time <= LONGEST);
    time.ok_or_else(|| line.invalid("time", word).hint("at most an hour"))
}

/// `ADDRESS[:PORT]`
fn address(line: &Directive, word: &Word) -> Result<SocketAddr, Error> {
    let text = word.lossy();
    let ip = text.trim_matches(['[', ']']).parse::<IpAddr>();
    let address = ip.map(|ip| SocketAddr::new(ip, 53)).or_else(|_| text.parse());
    address
        .map_err(|_| line.invalid("address", word).hint("it may be: 192.0.2.1, [2001:db8::1]:5353"))
}

//! Finds the authoritative name servers of a name, and whether they serve a record.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};

use super::query::{ask, ask_any, machine_resolvers, name, texts};
use super::{Dns, DnsFailure, TxtRecord};
use crate::policy::poll_after;
use crate::stop::Stop;

/// The longest chain of CNAMEs.
const ALIASES: usize = 8;
/// The most name servers of a zone that are asked, and the most addresses of each.
const SERVERS: usize = 8;
const ADDRESSES: usize = 4;

/// The content that a record of `dns-persist-01` must have.
#[derive(Debug, Clone)]
pub struct Persistent {
    /// The name that is proved, without `*.`.
    pub name: String,
    /// The certificate is for `*.` below the name.
    pub is_wildcard: bool,
    /// The issuer domain names of the authority.
    pub issuers: Vec<String>,
    /// The URL of the account.
    pub account: String,
}

impl Persistent {
    /// The record that the operator has to publish.
    pub fn wanted(&self) -> TxtRecord {
        let issuer = self.issuers.first().map_or("AUTHORITY", String::as_str);
        let policy = if self.is_wildcard { "; policy=wildcard" } else { "" };
        TxtRecord {
            name: format!("_validation-persist.{}", self.name),
            value: format!("{issuer}; accounturi={}{policy}", self.account),
        }
    }

    /// Whether a TXT value is such a record. `above`: it belongs to a parent name, so it must cover names below that.
    fn fits(&self, text: &str, above: bool) -> bool {
        let mut parts = text.split(';').map(str::trim);
        let issuer = parts.next().unwrap_or_default();
        let is_issuer = |known: &String| known.eq_ignore_ascii_case(issuer.trim_end_matches('.'));
        let (mut account, mut wildcard) = (None, false);
        for part in parts {
            let Some((name, value)) = part.split_once('=') else { continue };
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
            match name.as_str() {
                "accounturi" => account = Some(value),
                "policy" => wildcard = value.eq_ignore_ascii_case("wildcard"),
                _ => {}
            }
        }
        (self.issuers.is_empty() || self.issuers.iter().any(is_issuer))
            && account == Some(self.account.as_str())
            && (wildcard || !(above || self.is_wildcard))
    }
}

impl Dns {
    fn resolvers(&self) -> Vec<SocketAddr> {
        match self.resolvers.is_empty() {
            true => machine_resolvers(),
            false => self.resolvers.clone(),
        }
    }
}

/// Follows CNAMEs to the name whose record must be changed.
pub fn targets(dns: &Dns, stop: &Arc<Stop>, asked: &str) -> Result<String, DnsFailure> {
    let (resolvers, asked) = (dns.resolvers(), asked.to_owned());
    if resolvers.is_empty() {
        return Ok(asked);
    }
    let found = stop.run(move || {
        let mut at = name(&asked)?;
        for _ in 0..ALIASES {
            let Ok(answer) = ask_any(&resolvers, &at, RecordType::CNAME) else { break };
            let mut records = answer.answers.iter();
            let alias = records.find_map(|record| match &record.data {
                RData::CNAME(target) if record.name == at => Some(target.0.clone()),
                _ => None,
            });
            match alias {
                Some(target) => at = target,
                None => break,
            }
        }
        Ok(at.to_ascii().trim_end_matches('.').to_owned())
    })?;
    Ok(found.unwrap_or_else(|| Err("no thread for the name servers".to_owned()))?)
}

/// Whether the record of `dns-persist-01` is published. An error if the name servers do not answer.
pub fn is_published(dns: &Dns, stop: &Arc<Stop>, of: &Persistent) -> Result<bool, DnsFailure> {
    let (dns, of) = (dns.clone(), of.clone());
    let found = stop.run(move || {
        let servers = match dns.servers.is_empty() {
            true => dns.resolvers(),
            false => dns.servers.clone(),
        };
        let mut at = of.name.as_str();
        loop {
            let answer =
                ask_any(&servers, &name(&format!("_validation-persist.{at}"))?, RecordType::TXT)?;
            if texts(&answer).iter().any(|text| of.fits(text, at != of.name)) {
                return Ok(true);
            }
            match at.split_once('.') {
                Some((_, above)) if above.contains('.') => at = above,
                _ => return Ok(false),
            }
        }
    })?;
    Ok(found.unwrap_or_else(|| Err("no thread for the name servers".to_owned()))?)
}

/// Waits until the name servers serve all records.
pub fn until_visible(dns: &Dns, stop: &Arc<Stop>, records: &[TxtRecord]) -> Result<(), DnsFailure> {
    let Some(wait) = dns.wait else { return Ok(()) };
    let until = Instant::now() + wait;
    for record in records {
        let mut polls = 0;
        loop {
            let (own, of) = (dns.clone(), record.clone());
            let looked = stop.run(move || look(&own, &of))?;
            let missing = match looked {
                Some(Ok(())) => break,
                Some(Err(why)) => why,
                None => "no thread for the name servers".to_owned(),
            };
            if Instant::now() >= until {
                let (name, seconds) = (&record.name, wait.as_secs());
                let why = format!("no TXT record \"{name}\" within {seconds} s: {missing}");
                return Err(DnsFailure::Failed(why));
            }
            let left = until.saturating_duration_since(Instant::now());
            stop.wait(poll_after(polls, None).min(left))?;
            polls += 1;
        }
    }
    Ok(())
}

/// Checks that all servers that answer serve a record. The error names one that does not.
fn look(dns: &Dns, record: &TxtRecord) -> Result<(), String> {
    let name = name(&record.name)?;
    let resolvers = dns.resolvers();
    let (servers, recursive) = match dns.servers.is_empty() {
        false => (dns.servers.clone(), false),
        true => match authorities(&resolvers, &name)? {
            found if found.is_empty() => (resolvers, true),
            found => (found, false),
        },
    };
    let (mut shown, mut silent) = (false, String::new());
    for server in servers {
        match ask(server, &name, RecordType::TXT, recursive) {
            Ok(answer) if texts(&answer).contains(&record.value) => shown = true,
            Ok(answer) => {
                let code = match answer.metadata.response_code {
                    ResponseCode::NoError | ResponseCode::NXDomain => String::new(),
                    code => format!(" ({code})"),
                };
                return Err(format!("the name server {server} does not have it{code}"));
            }
            Err(e) => silent = format!("the name server {server} cannot be asked: {e}"),
        }
    }
    match shown {
        true => Ok(()),
        false if silent.is_empty() => Err("there is no name server to ask".to_owned()),
        false => Err(silent),
    }
}

/// The name servers of a name's zone. Empty if the resolvers do not know them.
fn authorities(resolvers: &[SocketAddr], of: &Name) -> Result<Vec<SocketAddr>, String> {
    let mut at = of.clone();
    let zone = loop {
        let answer = ask_any(resolvers, &at, RecordType::SOA)?;
        let mut records = answer.answers.iter().chain(&answer.authorities);
        let soa = records.find(|record| record.record_type() == RecordType::SOA);
        if let Some(soa) = soa {
            break soa.name.clone();
        }
        if at.num_labels() <= 2 {
            return Ok(Vec::new());
        }
        at = at.base_name();
    };
    let answer = ask_any(resolvers, &zone, RecordType::NS)?;
    let names = answer.answers.iter().filter_map(|record| match &record.data {
        RData::NS(target) => Some(target.0.clone()),
        _ => None,
    });
    let mut found = Vec::new();
    for server in names.take(SERVERS) {
        for kind in [RecordType::A, RecordType::AAAA] {
            let Ok(answer) = ask_any(resolvers, &server, kind) else { continue };
            let addresses = answer.answers.iter().filter_map(|record| match &record.data {
                RData::A(ip) => Some(IpAddr::V4(ip.0)),
                RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
                _ => None,
            });
            found.extend(addresses.take(ADDRESSES).map(|ip| SocketAddr::new(ip, 53)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_persistent_record_names_authority_account_and_policy() {
        let of = |is_wildcard| Persistent {
            name: "a.org".to_owned(),
            is_wildcard,
            issuers: vec!["ca.example".to_owned(), "ca.test".to_owned()],
            account: "https://ca/1".to_owned(),
        };
        let (plain, wildcard) = (of(false), of(true));
        for shown in [plain.wanted(), wildcard.wanted()] {
            assert_eq!(shown.name, "_validation-persist.a.org");
            assert!(plain.fits(&shown.value, false));
        }
        assert!(wildcard.fits(&wildcard.wanted().value, true));
        assert!(!wildcard.fits(&plain.wanted().value, false));
        assert!(!plain.fits(&plain.wanted().value, true));
        assert!(plain.fits(" CA.test. ;persistUntil=1;AccountURI = https://ca/1 ", false));
        for text in
            ["", "ca.test", "ca.test; accounturi=https://ca/2", "other; accounturi=https://ca/1"]
        {
            assert!(!plain.fits(text, false), "{text}");
        }
    }
}

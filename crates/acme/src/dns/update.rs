//! Dynamic updates (RFC 2136), signed with TSIG (RFC 8945).

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{SystemTime, UNIX_EPOCH};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::TsigAlgorithm;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType, TSigner};

use weir_proto::base64::{self, Alphabet};

use super::query::{ask, name, over_tcp};
use super::{Change, TxtRecord};

/// The time to live of published records, in seconds.
const TTL: u32 = 60;
/// The tolerated difference of clocks, in seconds (RFC 8945, section 5.2.3).
const FUDGE: u16 = 300;

/// `dns_update SERVER[:PORT] [key=FILE] [zone=NAME]`
#[derive(Debug, Clone)]
pub struct UpdateServer {
    /// The primary server, with a port.
    pub server: String,
    /// Its zone. If it is not given, the server is asked.
    pub zone: Option<String>,
    /// Signs the updates.
    pub key: Option<TsigKey>,
}

/// A key of TSIG.
#[derive(Clone)]
pub struct TsigKey(TSigner);

impl fmt::Debug for TsigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TsigKey").field("name", self.0.signer_name()).finish_non_exhaustive()
    }
}

impl TsigKey {
    /// From a file as BIND has it and `tsig-keygen` prints it: `key "NAME" { algorithm hmac-sha256; secret "BASE64"; };`
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<TsigKey, String> {
        let words = words(text);
        let shape = "it is to be: key \"NAME\" { algorithm hmac-sha256; secret \"BASE64\"; };";
        let after = |what: &str| {
            let at = words.iter().position(|word| word == what);
            let found = at.and_then(|at| words.get(at + 1));
            found.ok_or_else(|| format!("no {what} in it, {shape}"))
        };
        let (key, algorithm, secret) = (after("key")?, after("algorithm")?, after("secret")?);
        let algorithm = match algorithm.to_ascii_lowercase().trim_end_matches('.') {
            "hmac-sha256" => TsigAlgorithm::HmacSha256,
            "hmac-sha384" => TsigAlgorithm::HmacSha384,
            "hmac-sha512" => TsigAlgorithm::HmacSha512,
            other => {
                let kinds = "hmac-sha256, hmac-sha384 or hmac-sha512";
                return Err(format!("the algorithm \"{other}\" is not one of {kinds}"));
            }
        };
        let secret = base64::decode(Alphabet::Plain, secret.as_bytes());
        let secret = secret.filter(|secret| !secret.is_empty());
        let secret = secret.ok_or("its secret is not base64")?;
        let signer = TSigner::new(secret, algorithm, name(key)?, FUDGE);
        Ok(TsigKey(signer.map_err(|e| e.to_string())?))
    }
}

/// The words of a file of BIND, without its comments.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let mut rest = line.chars().peekable();
        while let Some(c) = rest.next() {
            let is_comment = c == '#' || (c == '/' && rest.peek() == Some(&'/'));
            match c {
                '"' => quoted = !quoted,
                _ if quoted => word.push(c),
                // Base64 may contain two slashes, so a comment begins only where a word does.
                _ if is_comment && word.is_empty() => break,
                '{' | '}' | ';' | ' ' | '\t' => words.push(std::mem::take(&mut word)),
                _ => word.push(c),
            }
        }
        words.push(std::mem::take(&mut word));
    }
    words.retain(|word| !word.is_empty());
    words
}

impl UpdateServer {
    /// Changes a record.
    pub fn change(&self, change: Change, record: &TxtRecord) -> Result<(), String> {
        let shown = &self.server;
        let found = self.server.to_socket_addrs();
        let found = found.map_err(|e| format!("the server \"{shown}\" of dns_update: {e}"))?;
        let mut why = format!("the server \"{shown}\" of dns_update has no address");
        for server in found {
            match self.change_at(server, change, record) {
                Ok(()) => return Ok(()),
                Err(failed) => why = failed,
            }
        }
        Err(why)
    }

    fn change_at(&self, server: SocketAddr, change: Change, of: &TxtRecord) -> Result<(), String> {
        let failed = |e: &dyn fmt::Display| {
            let what = match change {
                Change::Publish => "publish",
                Change::Remove => "remove",
            };
            format!("the name server {server} does not {what} \"{}\": {e}", of.name)
        };
        let owner = name(&of.name)?;
        let zone = match &self.zone {
            Some(zone) => name(zone)?,
            None => zone_at(server, &owner).map_err(|e| failed(&e))?,
        };
        if !zone.zone_of(&owner) {
            return Err(failed(&format!("it is not in the zone \"{zone}\"")));
        }
        let mut message = update(change, owner, zone, &of.value);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let verifier = match &self.key {
            Some(TsigKey(signer)) => message.finalize(signer, now).map_err(|e| failed(&e))?,
            None => None,
        };
        let bytes = message.to_vec().map_err(|e| failed(&e))?;
        let bytes = over_tcp(server, &bytes).map_err(|e| failed(&e))?;
        let answer = Message::from_vec(&bytes).map_err(|e| failed(&e))?;
        let code = answer.metadata.response_code;
        if code != ResponseCode::NoError {
            return Err(failed(&format!("it answers {code}")));
        }
        if let Some(mut verifier) = verifier {
            verifier.verify(&bytes).map_err(|e| failed(&e))?;
        }
        match answer.metadata.id == message.metadata.id {
            true => Ok(()),
            false => Err(failed(&"it answers another question")),
        }
    }
}

/// Asks a server for the zone of a name.
fn zone_at(server: SocketAddr, owner: &Name) -> Result<Name, String> {
    let mut name = owner.clone();
    while !name.is_root() {
        let answer = ask(server, &name, RecordType::SOA, false).map_err(|e| e.to_string())?;
        let mut records = answer.answers.iter().chain(&answer.authorities);
        if let Some(soa) = records.find(|record| record.record_type() == RecordType::SOA) {
            return Ok(soa.name.clone());
        }
        name = name.base_name();
    }
    Err("it has no zone of this name, \"zone=\" names one".to_owned())
}

/// The update message for a record that is added or removed.
fn update(change: Change, owner: Name, zone: Name, value: &str) -> Message {
    let mut message =
        Message::new(Message::query().metadata.id, MessageType::Query, OpCode::Update);
    message.add_query(Query::query(zone, RecordType::SOA));
    let data = RData::TXT(TXT::new(vec![value.to_owned()]));
    let mut record = Record::from_rdata(owner, TTL, data);
    if change == Change::Remove {
        (record.dns_class, record.ttl) = (DNSClass::NONE, 0);
    }
    message.add_authority(record);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_bind_writes_them() {
        for text in [
            "key \"acme.\" {\n\talgorithm hmac-sha256;\n\tsecret \"a//b+Q==\";\n};\n",
            "# mine\nkey acme { secret a//b+Q==; algorithm HMAC-SHA256; };",
        ] {
            let TsigKey(signer) = TsigKey::parse(text).unwrap();
            assert_eq!(signer.signer_name().to_string(), "acme.");
            assert_eq!(signer.key(), [107, 0xff, 0xdb, 0xf9], "{text}");
        }
        for (text, why) in [
            ("", "no key in it"),
            ("key a { secret b; };", "no algorithm in it"),
            (
                "key a { algorithm hmac-md5; secret b; };",
                "the algorithm \"hmac-md5\" is not one of",
            ),
            ("key a { algorithm hmac-sha512; };", "no secret in it"),
            ("key a { algorithm hmac-sha512; secret %; };", "its secret is not base64"),
        ] {
            let said = TsigKey::parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}

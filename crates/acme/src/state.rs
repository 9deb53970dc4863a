//! The directory of an issuer.
//!
//! | file | what |
//! |---|---|
//! | `lock` | held by the process that talks to the authority |
//! | `account-HASH.json` | the account at one authority, with its key |
//! | `orders/ID.json` | an order that was placed, with the key of its certificate |
//! | `attempts/ID.json` | when the last attempt was, and how long to wait before the next one |
//! | `account-HASH.pem` | its key, if the ACME library cannot use it |
//! | `records/HASH.json` | a TXT record that is or may be published, and must be removed |
//! | `challenges/TOKEN` | the response to the http-01 challenge with this token |
//! | `challenges/HOST.pem` | the certificate and key for the tls-alpn-01 challenge of this host |
//! | `certificates/ID.N.pem` | a certificate with its chain and key; the one with the highest number is in use |
//!
//! Each file is written under another name, synchronized and renamed. So it is whole whenever a process or the machine ends.
//! A file that does not parse all the same counts as missing.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rcgen::{KeyPair, PublicKeyData};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use x509_parser::pem::Pem;

use crate::dns::TxtRecord;
use crate::policy::{AttemptRecord, Interval};
use crate::settings::short_hash;

const CERTIFICATES: &str = "certificates";
const CHALLENGES: &str = "challenges";
const ORDERS: &str = "orders";
const ATTEMPTS: &str = "attempts";
const RECORDS: &str = "records";

/// The number of files of one certificate that are kept. A handshake may be reading the previous one.
const KEPT: usize = 2;

/// The prefix of files that are not finished yet.
const UNFINISHED: &str = ".new-";

/// Begins the line of a certificate's file that names the authority's URL.
const FROM: &str = "Issued by ACME server: ";

/// The directory of an issuer.
#[derive(Debug, Clone)]
pub struct StateDirectory {
    path: PathBuf,
}

/// An order that was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlacedOrder {
    /// The URL of the authority's directory.
    pub uri: String,
    /// The account that placed it.
    pub account: String,
    /// The URL of the order.
    pub url: String,
    /// The key of the certificate, in PEM.
    pub key: String,
}

/// A certificate on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCertificate {
    /// Its file.
    pub path: PathBuf,
    /// The time of its validity.
    pub validity: Interval,
    /// The URL of the authority's directory, if the file names it.
    pub uri: Option<String>,
    /// The certificate itself, in DER.
    pub der: Vec<u8>,
}

impl StateDirectory {
    /// The directory at this path.
    pub fn new(path: &Path) -> StateDirectory {
        StateDirectory { path: path.to_owned() }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directories that are missing.
    pub fn prepare(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        [CERTIFICATES, CHALLENGES, ORDERS, ATTEMPTS, RECORDS]
            .iter()
            .try_for_each(|name| builder.create(self.path.join(name)))
    }

    /// Takes the lock if it is free. It is held as long as the file is open.
    pub fn lock(&self) -> io::Result<Option<File>> {
        let path = self.path.join("lock");
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Removes files that an ended process has left: unfinished ones, and responses to challenges.
    pub fn clean(&self) -> io::Result<()> {
        let directories = [CERTIFICATES, CHALLENGES, ORDERS, ATTEMPTS, RECORDS];
        let directories = directories.map(|name| self.path.join(name));
        for directory in directories.iter().chain([&self.path]) {
            for entry in fs::read_dir(directory)? {
                let entry = entry?;
                let is_unfinished = entry.file_name().as_bytes().starts_with(UNFINISHED.as_bytes());
                if is_unfinished || directory.ends_with(CHALLENGES) {
                    fs::remove_file(entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// Loads the account with this `name`.
    pub fn account<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        read_json(&self.path.join(format!("account-{name}.json")))
    }

    /// Stores an account.
    pub fn keep_account<T: Serialize>(&self, name: &str, account: &T) -> io::Result<()> {
        write_json(&self.path.join(format!("account-{name}.json")), account)
    }

    /// Removes an account, but not its key.
    pub fn drop_account(&self, name: &str) -> io::Result<()> {
        remove(&self.path.join(format!("account-{name}.json")))
    }

    /// Loads the key of an account, in PEM.
    pub fn account_key(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path.join(format!("account-{name}.pem"))).ok()
    }

    /// Stores the key of an account.
    pub fn keep_account_key(&self, name: &str, pem: &str) -> io::Result<()> {
        write(&self.path.join(format!("account-{name}.pem")), pem.as_bytes())
    }

    /// The TXT records that may be published.
    pub fn records(&self) -> Vec<TxtRecord> {
        let Ok(entries) = fs::read_dir(self.path.join(RECORDS)) else { return Vec::new() };
        let found = entries.filter_map(|entry| read_json(&entry.ok()?.path()));
        found.collect()
    }

    /// Stores a TXT record, before it is published.
    pub fn keep_record(&self, record: &TxtRecord) -> io::Result<()> {
        write_json(&self.record_file(record), record)
    }

    /// Forgets a TXT record that was removed.
    pub fn drop_record(&self, record: &TxtRecord) -> io::Result<()> {
        remove(&self.record_file(record))
    }

    fn record_file(&self, record: &TxtRecord) -> PathBuf {
        let hash = short_hash(format!("{}\n{}", record.name, record.value).as_bytes());
        self.path.join(RECORDS).join(format!("{hash}.json"))
    }

    /// Loads the order that was placed for a certificate.
    pub fn order(&self, id: &str) -> Option<PlacedOrder> {
        read_json(&self.path.join(ORDERS).join(format!("{id}.json")))
    }

    /// Stores an order.
    pub fn keep_order(&self, id: &str, order: &PlacedOrder) -> io::Result<()> {
        write_json(&self.path.join(ORDERS).join(format!("{id}.json")), order)
    }

    /// Removes an order that has come to its end.
    pub fn drop_order(&self, id: &str) -> io::Result<()> {
        remove(&self.path.join(ORDERS).join(format!("{id}.json")))
    }

    /// Loads the record of attempts.
    pub fn attempts(&self, id: &str) -> AttemptRecord {
        read_json(&self.path.join(ATTEMPTS).join(format!("{id}.json"))).unwrap_or_default()
    }

    /// Stores the record of attempts.
    pub fn keep_attempts(&self, id: &str, record: &AttemptRecord) -> io::Result<()> {
        write_json(&self.path.join(ATTEMPTS).join(format!("{id}.json")), record)
    }

    /// Stores the response to an http-01 challenge, which is given from now on.
    pub fn answer(&self, token: &str, authorization: &str) -> io::Result<()> {
        let Some(path) = challenge_file(&self.path, token.as_bytes()) else {
            return Err(io::Error::other("the challenge's token is not base64url"));
        };
        write(&path, authorization.as_bytes())
    }

    /// Stores the certificate and key, in PEM, for the tls-alpn-01 challenge of a name.
    pub fn answer_over_tls(&self, name: &str, pem: &str) -> io::Result<()> {
        match tls_challenge_file(&self.path, &server_name(name)) {
            Some(path) => write(&path, pem.as_bytes()),
            None => Err(io::Error::other("the name is no host's")),
        }
    }

    /// Removes the responses for a token and a name.
    pub fn forget(&self, token: &str, name: &str) -> io::Result<()> {
        let over_http = challenge_file(&self.path, token.as_bytes());
        let over_tls = tls_challenge_file(&self.path, &server_name(name));
        over_http.iter().chain(&over_tls).try_for_each(|path| remove(path))
    }

    /// When the list of certificates last changed. The list must be read again if this has changed, or is recent: the clocks
    /// of file systems are coarse.
    pub fn changed(&self) -> Option<SystemTime> {
        fs::metadata(self.path.join(CERTIFICATES)).and_then(|found| found.modified()).ok()
    }

    /// The files of all certificates.
    pub fn files(&self) -> CertificateFiles {
        let mut files = CertificateFiles::default();
        for entry in fs::read_dir(self.path.join(CERTIFICATES)).into_iter().flatten() {
            let Ok(name) = entry.map(|entry| entry.file_name()) else { continue };
            let stem = name.to_str().and_then(|name| name.strip_suffix(".pem"));
            let Some((id, number)) = stem.and_then(|stem| stem.rsplit_once('.')) else { continue };
            if let Ok(number) = number.parse() {
                let path = self.path.join(CERTIFICATES).join(&name);
                files.0.entry(id.to_owned()).or_default().push((number, path));
            }
        }
        files.0.values_mut().for_each(|list| list.sort());
        files
    }

    /// Stores a certificate as the newest one: its chain and key, in PEM.
    pub fn keep_certificate(&self, id: &str, uri: &str, chain: &str, key: &str) -> io::Result<()> {
        let mut files = self.files();
        let found = files.0.remove(id).unwrap_or_default();
        let number = found.last().map_or(1, |(number, _)| number.saturating_add(1));
        let path = self.path.join(CERTIFICATES).join(format!("{id}.{number}.pem"));
        let (chain, key) = (chain.trim_end(), key.trim_end());
        write(&path, format!("{FROM}{uri}\n{chain}\n{key}\n").as_bytes())?;
        let old = found.len().saturating_sub(KEPT - 1);
        found.iter().take(old).try_for_each(|(_, path)| remove(path))
    }
}

/// The files of all certificates in a directory, by id. The newest of each is the last.
#[derive(Debug, Default)]
pub struct CertificateFiles(HashMap<String, Vec<(u64, PathBuf)>>);

impl CertificateFiles {
    /// The newest valid file of a certificate. The file of `known` is not read again, since files never change.
    pub fn newest(&self, id: &str, known: Option<&StoredCertificate>) -> Option<StoredCertificate> {
        let read = |path: &PathBuf| match known.filter(|known| known.path == *path) {
            Some(known) => Some(known.clone()),
            None => read_certificate(path),
        };
        self.0.get(id)?.iter().rev().find_map(|(_, path)| read(path))
    }
}

/// The file with the response to the http-01 challenge of this token. None if it is no valid token.
pub fn challenge_file(directory: &Path, token: &[u8]) -> Option<PathBuf> {
    let is_base64url = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let is_token = (1..=200).contains(&token.len()) && token.iter().all(is_base64url);
    let name = std::str::from_utf8(token).ok().filter(|_| is_token)?;
    Some(directory.join(CHALLENGES).join(name))
}

/// The file with the certificate and key for the tls-alpn-01 challenge of this host. None if it is no valid host name.
pub fn tls_challenge_file(directory: &Path, host: &str) -> Option<PathBuf> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_host =
        (1..=253).contains(&host.len()) && !host.starts_with('.') && host.bytes().all(is_plain);
    // Tokens have no dot.
    is_host.then(|| directory.join(CHALLENGES).join(format!("{}.pem", host.to_ascii_lowercase())))
}

/// The server name in an authority's handshake. For an address it is a name below `arpa` (RFC 8738, section 6).
fn server_name(name: &str) -> String {
    match name.parse() {
        Ok(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Ok(IpAddr::V6(ip)) => {
            let nibbles = ip.octets().into_iter().rev().flat_map(|byte| [byte & 15, byte >> 4]);
            nibbles.map(|nibble| format!("{nibble:x}.")).chain(["ip6.arpa".to_owned()]).collect()
        }
        Err(_) => name.to_owned(),
    }
}

impl StoredCertificate {
    /// Its path as bytes.
    pub fn shared_path(&self) -> Arc<[u8]> {
        Arc::from(self.path.as_os_str().as_bytes())
    }
}

/// Reads a certificate's file. None if it is incomplete, or its key belongs to another certificate.
fn read_certificate(path: &Path) -> Option<StoredCertificate> {
    let text = fs::read(path).ok()?;
    if !text.ends_with(b"PRIVATE KEY-----\n") {
        return None;
    }
    let (mut first, mut key) = (None, None);
    for section in Pem::iter_from_buffer(&text) {
        let section = section.ok()?;
        match section.label.as_str() {
            "CERTIFICATE" if first.is_none() => first = Some(section.contents),
            label if label.ends_with("PRIVATE KEY") => key = Some(section.contents),
            _ => {}
        }
    }
    let (der, key) = (first?, key?);
    // A key that cannot be parsed here is left to the handshake.
    if KeyPair::try_from(key).is_ok_and(|key| !is_of(&der, &key)) {
        return None;
    }
    let validity = validity(&der)?;
    let line = text.split(|b| *b == b'\n').next().and_then(|line| std::str::from_utf8(line).ok());
    let uri = line.and_then(|line| line.strip_prefix(FROM)).map(str::to_owned);
    Some(StoredCertificate { path: path.to_owned(), validity, uri, der })
}

/// Whether this key is that of a certificate in DER.
pub fn is_of(der: &[u8], key: &KeyPair) -> bool {
    let parsed = x509_parser::parse_x509_certificate(der);
    parsed.is_ok_and(|(_, found)| found.public_key().raw == key.subject_public_key_info())
}

/// The time of a certificate's validity.
pub fn validity(der: &[u8]) -> Option<Interval> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let found = certificate.validity();
    Some(Interval { start: found.not_before.timestamp(), end: found.not_after.timestamp() })
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    write(path, &serde_json::to_vec(value)?)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Writes a file atomically. Only its owner may read it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("no name of a file"));
    };
    let mut unfinished = OsString::from(UNFINISHED);
    unfinished.push(name);
    let unfinished = directory.join(unfinished);
    let mut options = OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_testkit::Dir;

    fn issued(days: i64) -> (String, String) {
        let mut params = rcgen::CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        params.not_after = params.not_before + std::time::Duration::from_secs(days as u64 * 86400);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn state() -> (Dir, StateDirectory) {
        let dir = Dir::new();
        let state = StateDirectory::new(&dir.path().join("state"));
        state.prepare().unwrap();
        (dir, state)
    }

    #[test]
    fn the_newest_whole_certificate_counts() {
        let (_dir, state) = state();
        let newest = |id| state.files().newest(id, None);
        assert_eq!(newest("a"), None);
        for days in [10, 20, 30] {
            let (chain, key) = issued(days);
            state.keep_certificate("a", "https://ca", &chain, &key).unwrap();
        }
        let found = newest("a").unwrap();
        assert_eq!(found.validity.end - found.validity.start, 30 * 86400);
        assert_eq!(found.uri.as_deref(), Some("https://ca"));
        assert_eq!(state.files().0["a"].len(), KEPT);
        // A newer file that is truncated anywhere does not count.
        let whole = fs::read(&found.path).unwrap();
        let torn = state.path.join(CERTIFICATES).join("a.9.pem");
        for length in 0..whole.len() {
            fs::write(&torn, &whole[..length]).unwrap();
            assert_eq!(newest("a").unwrap().path, found.path, "{length} bytes");
        }
        // A file with the key of another certificate does not count either.
        let (chain, _) = issued(40);
        fs::write(&torn, format!("{chain}{}", issued(40).1)).unwrap();
        assert_eq!(newest("a").unwrap().path, found.path);
        // A known file is not read again.
        let known = StoredCertificate { der: Vec::new(), ..found };
        assert_eq!(state.files().newest("a", Some(&known)), Some(known));
        // Files of another certificate do not count.
        assert_eq!(newest("a.1"), None);
    }

    #[test]
    fn one_process_at_a_time_has_the_lock() {
        let (_dir, state) = state();
        let lock = state.lock().unwrap();
        assert!(lock.is_some());
        assert!(state.lock().unwrap().is_none());
        drop(lock);
        assert!(state.lock().unwrap().is_some());
    }

    #[test]
    fn files_of_an_ended_process_are_removed() {
        let (_dir, state) = state();
        state.answer("token-1", "token-1.thumb").unwrap();
        let unfinished = state.path.join(ORDERS).join(format!("{UNFINISHED}x.json"));
        fs::write(&unfinished, "{").unwrap();
        state.keep_attempts("x", &AttemptRecord::default()).unwrap();
        state.clean().unwrap();
        assert!(!unfinished.exists());
        assert_eq!(fs::read_dir(state.path.join(CHALLENGES)).unwrap().count(), 0);
        assert_eq!(fs::read_dir(state.path.join(ATTEMPTS)).unwrap().count(), 1);
    }

    #[test]
    fn the_server_name_of_an_address_is_below_arpa() {
        assert_eq!(server_name("example.org"), "example.org");
        assert_eq!(server_name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        let long = format!("1.{}8.b.d.0.1.0.0.2.ip6.arpa", "0.".repeat(23));
        assert_eq!(server_name("2001:db8::1"), long);
        let file = |host| tls_challenge_file(Path::new("/s"), host);
        assert_eq!(file("A.org"), Some(PathBuf::from("/s/challenges/a.org.pem")));
        for host in ["", "..", ".a", "../lock", "a/b", "a\0", "[::1]"] {
            assert_eq!(file(host), None, "{host:?}");
        }
    }

    #[test]
    fn tokens_cannot_leave_the_directory() {
        let directory = Path::new("/state");
        let file = |token: &[u8]| challenge_file(directory, token);
        assert_eq!(file(b"aZ_-9"), Some(PathBuf::from("/state/challenges/aZ_-9")));
        let long = [b'a'; 201];
        for token in [b"".as_slice(), b".", b"..", b"../lock", b"a/b", b"a\0", b"\xff", &long] {
            assert_eq!(file(token), None, "{token:?}");
        }
    }
}

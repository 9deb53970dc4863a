//! Self-signed certificates, one per name, in the state directory.
//!
//! A stored certificate is used again, so that clients have to trust it only once.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

use crate::QuickError;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Validity in days. Most browsers refuse more than 398.
const VALID: u32 = 397;

/// Age in days after which a certificate is replaced.
const USED: u32 = 360;

/// How long to wait for another process that makes a certificate, and the pauses between attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);

/// The files of a certificate.
pub struct Certificate {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// The certificate for `name` in the directory `state`. A missing one is created.
pub fn of(name: &str, state: &Path) -> Result<Certificate, QuickError> {
    check(name)?;
    let (certificate, key) = (state.join(format!("{name}.crt")), state.join(format!("{name}.key")));
    let files = Certificate { certificate, key };
    if !files.are_fresh() {
        // Of two processes that write the same files, one could write the key and the other the
        // certificate. The lock ends with this value.
        let _lock = lock(state)?;
        if !files.are_fresh() {
            files.make(name)?;
        }
    }
    Ok(files)
}

/// Locks the directory.
#[expect(clippy::disallowed_methods, reason = "the program has only begun")]
fn lock(directory: &Path) -> Result<File, QuickError> {
    let failed = |e| QuickError::File(directory.to_owned(), e);
    let (file, until) = (File::open(directory).map_err(failed)?, Instant::now() + PATIENCE);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(failed(io::ErrorKind::TimedOut.into())),
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
    }
}

/// Checks that a certificate may have this name.
pub fn check(name: &str) -> Result<(), QuickError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || ".-:".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
        return Err(QuickError::Word(name.to_owned(), "is no name for a certificate"));
    }
    Ok(())
}

impl Certificate {
    fn are_fresh(&self) -> bool {
        let age = |path: &Path| {
            let made = fs::metadata(path).ok()?.modified().ok()?;
            SystemTime::now().duration_since(made).ok()
        };
        let fresh = |path| age(path).is_some_and(|age| age < DAY * USED);
        fresh(&self.certificate) && fresh(&self.key)
    }

    fn make(&self, name: &str) -> Result<(), QuickError> {
        let mut names = vec![name.to_owned()];
        if name == "localhost" {
            names.extend(["127.0.0.1".to_owned(), "::1".to_owned()]);
        }
        let failed = QuickError::Certificate;
        let mut params = CertificateParams::new(names).map_err(failed)?;
        let now = SystemTime::now();
        // Valid from an hour ago, since clocks differ.
        params.not_before = (now - DAY / 24).into();
        params.not_after = (now + DAY * VALID).into();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "weir proxy");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        write(&self.key, 0o600, &key.serialize_pem())?;
        write(&self.certificate, 0o644, &certificate.pem())
    }
}

/// The name as the host of a URL: an IPv6 address gets brackets.
pub fn url_host(name: &str) -> String {
    match name.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        _ => name.to_owned(),
    }
}

/// Writes a file atomically: under another name, which is then renamed. So a running server never
/// reads half of it.
fn write(path: &Path, mode: u32, text: &str) -> Result<(), QuickError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&beside, path)
    };
    written().map_err(|e| {
        let _ = fs::remove_file(&beside);
        QuickError::File(path.to_owned(), e)
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn processes_that_start_at_once_have_one_certificate_and_its_key() {
        let state = std::env::temp_dir().join(format!("weir-quick-{}", std::process::id()));
        fs::create_dir_all(&state).unwrap();
        // A lock belongs to an open file, so threads stand for processes.
        let held = lock(&state).unwrap();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let state = state.clone();
                thread::spawn(move || {
                    let files = of("localhost", &state).unwrap_or_else(|e| panic!("{e}"));
                    [files.certificate, files.key].map(|path| fs::read(path).unwrap())
                })
            })
            .collect();
        drop(held);
        let mut stored = threads.into_iter().map(|thread| thread.join().unwrap());
        let first = stored.next().unwrap();
        assert!(stored.all(|files| files == first));
        fs::remove_dir_all(&state).unwrap();
    }
}

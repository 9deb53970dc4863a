//! The identity of a worker: limits, user, directory. A worker assumes it before it serves.

use std::ffi::OsString;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
};
use weir_log::{Cause, Log, log};
use weir_sys::{environment, user};

use crate::config::Config;

/// The worker could not assume its identity. The log has the reason.
#[derive(Debug)]
pub struct IdentityFailed;

/// Assumes the identity that the configuration gives to workers.
pub fn take(config: &Config, log: &Log) -> Result<(), IdentityFailed> {
    take_environment(config, log)?;
    limits(config, log);
    become_user(config, log)?;
    // Programs that scripts start, even set-user-ID ones, get no more rights than the worker has.
    log_failure(log, "prctl(PR_SET_NO_NEW_PRIVS)", || set_no_new_privs(true).map_err(Into::into));
    // A change of user disables core files. The administrator's core limit decides instead.
    log_failure(log, "prctl(PR_SET_DUMPABLE)", || {
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).map_err(Into::into)
    });
    if let Some(directory) = &config.directory
        && let Err(e) = std::env::set_current_dir(directory)
    {
        log!(log, Alert, None, "chdir(\"{}\") failed {}", directory.display(), Cause(&e));
        return Err(IdentityFailed);
    }
    Ok(())
}

/// Sets the environment that the configuration gives to workers and to a server without a master.
pub fn take_environment(config: &Config, log: &Log) -> Result<(), IdentityFailed> {
    let environment = variables(&config.environment, |name| std::env::var_os(name));
    environment::replace(&environment).map_err(|e| {
        log!(log, Alert, None, "the environment could not be set {}", Cause(&e));
        IdentityFailed
    })
}

fn limits(config: &Config, log: &Log) {
    let set = |resource, n: u64| {
        let limit = Rlimit { current: Some(n), maximum: Some(n) };
        rustix::process::setrlimit(resource, limit).map_err(io::Error::from)
    };
    if config.priority != 0 {
        log_failure(log, &format!("setpriority({})", config.priority), || {
            rustix::process::setpriority_process(None, config.priority).map_err(Into::into)
        });
    }
    if let Some(n) = config.nofile {
        log_failure(log, &format!("setrlimit(RLIMIT_NOFILE, {n})"), || set(Resource::Nofile, n));
    }
    if let Some(n) = config.core {
        log_failure(log, &format!("setrlimit(RLIMIT_CORE, {n})"), || set(Resource::Core, n));
    }
}

/// Runs `does` and logs a failure, which the worker can tolerate.
fn log_failure(log: &Log, what: &str, does: impl FnOnce() -> io::Result<()>) {
    if let Err(e) = does() {
        log!(log, Alert, None, "{what} failed {}", Cause(&e));
    }
}

/// Gives up root. The group goes first, since an ordinary user may not change it.
fn become_user(config: &Config, log: &Log) -> Result<(), IdentityFailed> {
    let Some(user) = config.user.as_ref().filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    let fatal = |what: String, e: io::Error| {
        log!(log, Emerg, None, "{what} failed {}", Cause(&e));
        IdentityFailed
    };
    // Not possible after setuid().
    if user.uid != 0 {
        forget_capabilities().map_err(|e| fatal("prctl(PR_CAPBSET_DROP)".into(), e.into()))?;
    }
    let name = user.name.to_string_lossy();
    user::set_group(user.gid).map_err(|e| fatal(format!("setgid({})", user.gid), e))?;
    let what = format!("initgroups({name}, {})", user.gid);
    match user::set_groups_of(&user.name, user.gid) {
        // In a container without CAP_SETGID, root stays root and has the rights of all groups
        // anyway.
        Err(e) if user.uid == 0 => log!(log, Warn, None, "{what} failed, ignored {}", Cause(&e)),
        // nginx keeps root's groups in this case.
        done => done.map_err(|e| fatal(what, e))?,
    }
    if config.transparent && user.uid != 0 {
        set_keep_capabilities(true)
            .map_err(|e| fatal("prctl(PR_SET_KEEPCAPS, 1)".into(), e.into()))?;
    }
    user::set_user(user.uid).map_err(|e| fatal(format!("setuid({})", user.uid), e))?;
    if user.uid != 0 {
        let none = CapabilitySet::empty();
        let kept = if config.transparent { CapabilitySet::NET_RAW } else { none };
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
        set_capabilities(None, sets).map_err(|e| fatal("capset()".into(), e.into()))?;
    }
    Ok(())
}

/// Empties the capability bounding set, so that no program that this process runs can gain a
/// capability. Skipped if a service manager has removed CAP_SETPCAP; it then decides on the set
/// itself.
fn forget_capabilities() -> Result<(), Errno> {
    for capability in (0..u64::BITS).map(|n| CapabilitySet::from_bits_retain(1 << n)) {
        match capability_is_in_bounding_set(capability) {
            Ok(true) => match remove_capability_from_bounding_set(capability) {
                Err(Errno::PERM) => return Ok(()),
                other => other?,
            },
            Ok(false) => {}
            // The kernel has no capability with this number.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// The environment of a worker: the variables that `env` lines name or set, and the time zone.
fn variables(
    said: &[(OsString, Option<OsString>)],
    present: impl Fn(&OsString) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let zone = OsString::from("TZ");
    let mut lines = said.to_vec();
    if !lines.iter().any(|(name, _)| *name == zone) {
        lines.push((zone, None));
    }
    lines
        .into_iter()
        .filter_map(|(name, value)| {
            let value = value.or_else(|| present(&name))?;
            Some((name, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_what_is_named_and_the_time_zone() {
        let present = |name: &OsString| {
            let known = [("TZ", "UTC"), ("A", "1"), ("B", "2")];
            known.iter().find(|(n, _)| name == n).map(|(_, value)| value.into())
        };
        let pair = |n: &str, v: &str| (OsString::from(n), OsString::from(v));
        assert_eq!(variables(&[], present), [pair("TZ", "UTC")]);
        let said = [("A".into(), None), ("B".into(), Some("9".into())), ("C".into(), None)];
        assert_eq!(variables(&said, present), [pair("A", "1"), pair("B", "9"), pair("TZ", "UTC")]);
        let said = [("TZ".into(), Some("CET".into()))];
        assert_eq!(variables(&said, present), [pair("TZ", "CET")]);
    }
}

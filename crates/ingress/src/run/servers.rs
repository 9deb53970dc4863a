//! Files with the servers of upstream groups, which weir's running workers follow (`servers_file`).
//!
//! - In: the groups that a translation names ([`ServerFiles::adopt`]), and Services whose pods have
//!   changed ([`ServerFiles::follow`]).
//! - Out: files, each replaced atomically; and whether the configuration depends on a change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::cluster::Key;
use super::health::Counters;
use super::shared::say;
use super::slices::Slices;
use crate::settings::{PodChoice, Settings};
use crate::translate::{DIRECTORY, ServerGroup};

/// A group that the configuration names, and its file.
#[derive(Debug)]
struct Known {
    group: ServerGroup,
    /// The text of the file, if it could be written.
    text: Option<Vec<u8>>,
    /// The room that the group's servers need in its zone.
    room: usize,
}

/// The files of all groups.
#[derive(Debug)]
pub struct ServerFiles {
    directory: PathBuf,
    loopback: bool,
    zone: Option<String>,
    groups: BTreeMap<String, Known>,
    /// The groups with the pods of a Service.
    by_service: HashMap<Key, BTreeSet<String>>,
    /// Whether an earlier process may have left files.
    strays: bool,
}

impl ServerFiles {
    /// Starts without groups. Files of an earlier process stay until a configuration is served.
    pub fn new(settings: &Settings) -> ServerFiles {
        ServerFiles {
            directory: settings.state.join(DIRECTORY),
            loopback: settings.loopback,
            zone: settings.zone.clone(),
            groups: BTreeMap::new(),
            by_service: HashMap::new(),
            strays: true,
        }
    }

    /// Adds the groups of a configuration that is to be served, and writes the files that are
    /// missing. Returns whether the configuration is outdated: its pods have changed so much that
    /// it depends on the change.
    pub fn adopt(
        &mut self,
        groups: &BTreeMap<String, ServerGroup>,
        slices: &Slices,
        counters: &Counters,
    ) -> io::Result<bool> {
        if self.groups.is_empty() && !groups.is_empty() {
            make(&self.directory)?;
        }
        let mut old = false;
        let choice = PodChoice { loopback: self.loopback, zone: self.zone.as_deref() };
        for (name, group) in groups {
            let is_new = self.groups.get(name).is_none_or(|known| known.group != *group);
            if is_new {
                let of = (group.namespace.clone(), group.service.clone());
                self.by_service.entry(of).or_default().insert(name.clone());
                // The group has changed, so its file is written anew.
                let known = Known { group: group.clone(), text: None, room: 0 };
                self.groups.insert(name.clone(), known);
            }
            let Some(known) = self.groups.get_mut(name) else { continue };
            if known.text.is_none() {
                known.update(&self.directory.join(name), slices, choice, counters)?;
            }
            old |= known.room != group.room;
        }
        Ok(old)
    }

    /// Updates the files with the pods of a Service. Returns whether the configuration depends on
    /// the change.
    pub fn follow(&mut self, service: &Key, slices: &Slices, counters: &Counters) -> bool {
        let mut any = false;
        let choice = PodChoice { loopback: self.loopback, zone: self.zone.as_deref() };
        for name in self.by_service.get(service).into_iter().flatten() {
            let Some(known) = self.groups.get_mut(name) else { continue };
            let path = self.directory.join(name);
            if let Err(error) = known.update(&path, slices, choice, counters) {
                // The next configuration tries again.
                say("error", format_args!("{}: {error}", path.display()));
                known.text = None;
                any = true;
            }
            any |= known.room != known.group.room;
        }
        any
    }

    /// Updates all files.
    pub fn follow_all(&mut self, slices: &Slices, counters: &Counters) {
        let services: Vec<Key> = self.by_service.keys().cloned().collect();
        services.iter().for_each(|service| {
            self.follow(service, slices, counters);
        });
    }

    /// Removes the files of all other groups. The configuration with `groups` is served, and no
    /// earlier one is.
    pub fn keep_only(&mut self, groups: &BTreeMap<String, ServerGroup>) {
        let gone: Vec<String> =
            self.groups.keys().filter(|name| !groups.contains_key(*name)).cloned().collect();
        for name in gone {
            let Some(known) = self.groups.remove(&name) else { continue };
            let of = (known.group.namespace, known.group.service);
            if let Some(names) = self.by_service.get_mut(&of) {
                names.remove(&name);
                if names.is_empty() {
                    self.by_service.remove(&of);
                }
            }
            // A file that stays does no harm.
            let _ = fs::remove_file(self.directory.join(name));
        }
        if std::mem::take(&mut self.strays) {
            let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
            for entry in entries {
                if entry.file_name().to_str().is_none_or(|name| !groups.contains_key(name)) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

impl Known {
    /// Updates the file to the present pods.
    fn update(
        &mut self,
        path: &Path,
        slices: &Slices,
        choice: PodChoice<'_>,
        counters: &Counters,
    ) -> io::Result<()> {
        let service = (self.group.namespace.clone(), self.group.service.clone());
        let addresses = self.group.addresses(slices.of(&service), choice);
        self.room = self.group.room_for(&addresses);
        // The last servers stay until a configuration answers in their place.
        if addresses.is_empty() && self.text.is_some() {
            return Ok(());
        }
        let text = weir_conf::print(&self.group.lines(&addresses)).map_err(io::Error::other)?;
        if self.text.as_ref() != Some(&text) {
            write(path, &text)?;
            counters.server_files.add();
            self.text = Some(text);
        }
        Ok(())
    }
}

/// Makes the directory, readable for weir's workers.
fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o711).create(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let Some(state) = directory.parent() else { return Ok(()) };
    let mode = fs::metadata(state)?.permissions().mode();
    if mode & 0o011 != 0o011 {
        // An earlier version made the directory for its owner alone. If another user owns it,
        // weir's workers run as that user.
        let _ = fs::set_permissions(state, Permissions::from_mode(mode | 0o011));
    }
    Ok(())
}

/// Replaces a file atomically.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&part)?;
    file.write_all(text)?;
    drop(file);
    fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ServicePort;
    use kube::runtime::watcher::Event;

    use super::*;

    fn pods(slices: &mut Slices, ips: &[&str]) {
        let object = serde_json::json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ips }],
            "ports": [{ "port": 8080 }],
            "metadata": { "name": "s1", "namespace": "a", "labels": { "kubernetes.io/service-name": "s" } } });
        slices.apply(Event::Apply(serde_json::from_value(object).unwrap()));
    }

    #[test]
    fn files_follow_the_pods_and_the_configuration_hears_of_none_and_some_alone() {
        let dir = weir_testkit::Dir::new();
        let settings = Settings { state: dir.file("state"), ..Settings::default() };
        let (mut slices, counters) = (Slices::default(), Counters::default());
        let mut files = ServerFiles::new(&settings);
        let mut group =
            ServerGroup::new("a", "s", &ServicePort { port: 80, ..ServicePort::default() });
        let groups = |group: &ServerGroup| BTreeMap::from([("a_s_80".to_owned(), group.clone())]);
        let service = ("a".to_owned(), "s".to_owned());
        let read = || dir.read("state/servers/a_s_80");
        // No pod is ready: the configuration has no group. It depends on the first pod.
        assert!(!files.adopt(&groups(&group), &slices, &counters).unwrap());
        pods(&mut slices, &["10.0.0.1"]);
        assert!(files.follow(&service, &slices, &counters));
        assert!(files.adopt(&groups(&group), &slices, &counters).unwrap());
        group.room = files.groups["a_s_80"].room;
        assert!(!files.adopt(&groups(&group), &slices, &counters).unwrap());
        assert_eq!(read(), "server 10.0.0.1:8080;\n");
        pods(&mut slices, &["10.0.0.2", "10.0.0.3"]);
        assert!(!files.follow(&service, &slices, &counters));
        assert_eq!(read(), "server 10.0.0.2:8080;\nserver 10.0.0.3:8080;\n");
        let written = counters.server_files.get();
        files.follow_all(&slices, &counters);
        assert_eq!(counters.server_files.get(), written);
        // The last pod goes. Its file stays until a configuration without the group is served.
        pods(&mut slices, &[]);
        assert!(files.follow(&service, &slices, &counters));
        assert_eq!(read().lines().count(), 2);
        dir.write("state/servers/stray", "");
        files.keep_only(&BTreeMap::new());
        assert_eq!(fs::read_dir(dir.file("state/servers")).unwrap().count(), 0);
        pods(&mut slices, &["10.0.0.1"]);
        assert!(!files.follow(&service, &slices, &counters));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_written_with_the_next_configuration() {
        let dir = weir_testkit::Dir::new();
        let settings = Settings { state: dir.file("state"), ..Settings::default() };
        let (mut slices, counters) = (Slices::default(), Counters::default());
        let mut files = ServerFiles::new(&settings);
        let group = ServerGroup::new("a", "s", &ServicePort { port: 80, ..ServicePort::default() });
        let groups = BTreeMap::from([("a_s_80".to_owned(), group)]);
        pods(&mut slices, &["10.0.0.1"]);
        files.adopt(&groups, &slices, &counters).unwrap();
        pods(&mut slices, &["10.0.0.2"]);
        fs::create_dir(dir.file("state/servers/a_s_80.part")).unwrap();
        assert!(files.follow(&("a".to_owned(), "s".to_owned()), &slices, &counters));
        files.adopt(&groups, &slices, &counters).unwrap_err();
        fs::remove_dir(dir.file("state/servers/a_s_80.part")).unwrap();
        files.adopt(&groups, &slices, &counters).unwrap();
        assert_eq!(dir.read("state/servers/a_s_80"), "server 10.0.0.2:8080;\n");
    }
}

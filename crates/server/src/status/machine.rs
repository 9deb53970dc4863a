//! The kernel's figures of memory, descriptors and weir's processes. They come from files of the
//! kernel, which need no disk.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::stat;
use rustix::param::page_size;
use weir_health::MemoryUse;
use weir_metrics::{MACHINE, MetricValue, MetricsPage, ProcessFigures, Registry};

/// Records the descriptors and memory of each process in the tally of its first loop.
pub fn note_processes(registry: &Registry) {
    let mut last = 0;
    let mut loops = registry.loops();
    loops.sort_by_key(|tally| (tally.owner.pid, tally.owner.index));
    for tally in loops {
        let pid = tally.owner.pid;
        if std::mem::replace(&mut last, pid) != pid {
            tally.record_process(figures(Path::new(&format!("/proc/{pid}"))));
        }
    }
}

/// The figures of a process, from its directory in /proc. Figures that cannot be read are 0.
fn figures(process: &Path) -> ProcessFigures {
    let text = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
    let pages = text("statm").split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0u64);
    ProcessFigures {
        descriptors: descriptors(&process.join("fd")),
        descriptors_limit: descriptors_limit(&text("limits")).unwrap_or(0),
        resident: pages.saturating_mul(page_size() as u64),
    }
}

/// The number of descriptors. Since Linux 6.2 it is the size of the directory.
fn descriptors(directory: &Path) -> u64 {
    match stat(directory) {
        Ok(stat) if stat.st_size > 0 => stat.st_size.cast_unsigned(),
        _ => fs::read_dir(directory).map_or(0, |files| files.count() as u64),
    }
}

/// The soft limit of open files. None if it is unlimited.
fn descriptors_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Adds the machine's row to a page.
pub fn show(page: &mut MetricsPage) {
    let mut values = Vec::new();
    let mut add = |name, value: Option<u64>| {
        values.extend(value.map(|n| (name, MetricValue::Number(n))));
    };
    let group = ControlGroup::own(Path::new("/"));
    let group = group.as_ref();
    add("memory_used", group.and_then(ControlGroup::used));
    add("memory_unreclaimable", group.and_then(ControlGroup::unreclaimable));
    add("memory_limit", group.and_then(ControlGroup::limit));
    add("memory_kills", group.and_then(ControlGroup::kills));
    let read = |name: &str| fs::read_to_string(name).unwrap_or_default();
    add("listen_overflows", listen_overflows(&read("/proc/net/netstat")));
    let files = read("/proc/sys/fs/file-nr");
    let mut files = files.split_ascii_whitespace().map(|word| word.parse().ok());
    add("open_descriptors", files.next().flatten());
    add("descriptors_limit", files.nth(1).flatten());
    if !values.is_empty() {
        page.add(&MACHINE, Vec::new(), values);
    }
}

/// The memory limit and use of weir's control group, if it has a limit.
pub fn memory() -> Option<MemoryUse> {
    let group = ControlGroup::own(Path::new("/"))?;
    Some(MemoryUse { limit: group.limit()?, used: group.unreclaimable()? })
}

/// `ListenOverflows` of `TcpExt`: a line of names, then a line of values.
fn listen_overflows(netstat: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let [names, values] = [lines.next()?, lines.next()?].map(str::split_ascii_whitespace);
    let mut pairs = names.zip(values);
    pairs.find(|(name, _)| *name == "ListenOverflows")?.1.parse().ok()
}

/// This process's control group for memory. cgroups(7)
#[derive(Debug)]
struct ControlGroup {
    directory: PathBuf,
    /// The mount point. The limits of all groups from here down apply.
    root: PathBuf,
    version: GroupVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupVersion {
    One,
    Two,
}

impl ControlGroup {
    /// The control group of this process, on a machine whose files are under `root`.
    fn own(root: &Path) -> Option<ControlGroup> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let (mut found, mounted) = (None, root.join("sys/fs/cgroup"));
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let (version, root) = if controllers.split(',').any(|name| name == "memory") {
                (GroupVersion::One, mounted.join("memory"))
            } else if controllers.is_empty() && found.is_none() {
                (GroupVersion::Two, mounted.clone())
            } else {
                continue;
            };
            // In a container the path may be that of the machine, of which the container only sees
            // its own part.
            let whole = root.join(path.trim_start_matches('/'));
            let directory = if whole.is_dir() { whole } else { root.clone() };
            found = Some(ControlGroup { directory, root, version });
        }
        found
    }

    fn text(&self, directory: &Path, one: &str, two: &str) -> Option<String> {
        let name = if self.version == GroupVersion::One { one } else { two };
        fs::read_to_string(directory.join(name)).ok()
    }

    fn used(&self) -> Option<u64> {
        let used = self.text(&self.directory, "memory.usage_in_bytes", "memory.current");
        used?.trim().parse().ok()
    }

    /// The memory that container managers watch: all except inactive file pages.
    fn unreclaimable(&self) -> Option<u64> {
        let stat = self.text(&self.directory, "memory.stat", "memory.stat")?;
        let name = match self.version {
            GroupVersion::One => "total_inactive_file",
            GroupVersion::Two => "inactive_file",
        };
        Some(self.used()?.saturating_sub(field(&stat, name)?))
    }

    /// The lowest limit of the group and its parents. None if there is none.
    fn limit(&self) -> Option<u64> {
        let groups = self.directory.ancestors().take_while(|path| path.starts_with(&self.root));
        let limit = |path: &Path| {
            let text = self.text(path, "memory.limit_in_bytes", "memory.max")?;
            text.trim().parse::<u64>().ok().filter(|limit| *limit < UNLIMITED)
        };
        groups.filter_map(limit).min()
    }

    fn kills(&self) -> Option<u64> {
        let events = self.text(&self.directory, "memory.oom_control", "memory.events")?;
        field(&events, "oom_kill")
    }
}

/// In version 1 an unlimited group has the largest number of whole pages as its limit.
const UNLIMITED: u64 = i64::MAX.cast_unsigned() - (1 << 20);

/// The number after a name, in lines of a name and a number.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the files are a test's")]
mod tests {
    use super::*;

    /// A directory with these files, removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let root = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_group_of_version_two_has_the_least_limit_above_it() {
        let tree = Tree::new(
            "group-two",
            &[
                ("proc/self/cgroup", "0::/system.slice/weir.service\n"),
                ("sys/fs/cgroup/system.slice/memory.max", "1000000\n"),
                ("sys/fs/cgroup/system.slice/weir.service/memory.max", "max\n"),
                ("sys/fs/cgroup/system.slice/weir.service/memory.current", "70000\n"),
                (
                    "sys/fs/cgroup/system.slice/weir.service/memory.stat",
                    "anon 60000\ninactive_file 4000\nactive_file 6000\n",
                ),
                (
                    "sys/fs/cgroup/system.slice/weir.service/memory.events",
                    "low 0\noom 3\noom_kill 2\noom_group_kill 1\n",
                ),
            ],
        );
        let group = ControlGroup::own(&tree.0).unwrap();
        assert_eq!(group.used(), Some(70_000));
        assert_eq!(group.unreclaimable(), Some(66_000));
        assert_eq!(group.limit(), Some(1_000_000));
        assert_eq!(group.kills(), Some(2));
    }

    #[test]
    fn a_container_sees_its_group_at_the_root() {
        let tree = Tree::new(
            "group-root",
            &[
                ("proc/self/cgroup", "0::/../docker/0123\n"),
                ("sys/fs/cgroup/memory.max", "5000\n"),
                ("sys/fs/cgroup/memory.current", "4000\n"),
            ],
        );
        let group = ControlGroup::own(&tree.0).unwrap();
        assert_eq!((group.used(), group.limit()), (Some(4000), Some(5000)));
        assert_eq!(group.unreclaimable(), None);
    }

    #[test]
    fn a_group_of_version_one_is_found_beside_version_two() {
        let tree = Tree::new(
            "group-one",
            &[
                ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n"),
                ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900\n"),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
                (
                    "sys/fs/cgroup/memory/job/memory.stat",
                    "inactive_file 1\ntotal_inactive_file 300\n",
                ),
                ("sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill 7\n"),
            ],
        );
        let group = ControlGroup::own(&tree.0).unwrap();
        assert_eq!((group.used(), group.unreclaimable()), (Some(900), Some(600)));
        assert_eq!((group.limit(), group.kills()), (None, Some(7)));
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let netstat = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 22 23\n\
                       IpExt: InNoRoutes\nIpExt: 0\n";
        assert_eq!(listen_overflows(netstat), Some(22));
        assert_eq!(listen_overflows("TcpExt: ListenOverflows\n"), None);
        let limits = "Limit        Soft Limit  Hard Limit  Units\n\
                      Max open files            1024                 4096                 files\n";
        assert_eq!(descriptors_limit(limits), Some(1024));
        assert_eq!(descriptors_limit("Max open files            unlimited unlimited files"), None);
    }

    #[test]
    fn a_process_has_descriptors_and_memory() {
        let own = figures(Path::new("/proc/self"));
        assert!(own.descriptors >= 3 && own.resident > 1 << 20, "{own:?}");
        // More than the tests that run at the same time may close.
        let files = [(); 200].map(|()| fs::File::open("/proc/self/limits").unwrap());
        assert!(figures(Path::new("/proc/self")).descriptors > own.descriptors + 50);
        drop(files);
    }
}

//! The disk, the origin and the server of the experiment.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::origin::Origin;
use super::streams::{self, DiskRequest, Streams};
use super::waits::Buckets;
use super::{LoadResult, ONE_IN};
use crate::lab::Lab;
use crate::program::{Family, ServerSetup, Subject};
use crate::running::{RunningServer, scratch_dir};
use crate::slow_disk::{Delays, Operation, Share, SlowDisk, Spread};

/// How long a slow operation takes.
const DELAY: Duration = Duration::from_millis(100);
/// The number of objects that are requested repeatedly.
const HOT: u32 = 20;

/// The disk and the origin, which all servers share. Fields are dropped in this order.
pub(crate) struct SharedServers {
    origin: Origin,
    disk: SlowDisk,
    scratch: Scratch,
    /// Number of the next object that was never requested.
    fresh: Cell<u32>,
    /// Number of the next object for loads that request all objects in turn.
    next: Cell<u32>,
}

/// A directory that is removed when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl SharedServers {
    /// Mounts the disk and starts the origin. The error says why there is no slow disk.
    pub(crate) fn new(lab: &Lab) -> Result<SharedServers, String> {
        lab.step("mounting a slow disk");
        let name = format!("weir-lab-disk-{}", std::process::id());
        let scratch = Scratch(scratch_dir(&name)?);
        let (source, mount) = (scratch.0.join("source"), scratch.0.join("mount"));
        for dir in [&source, &mount] {
            fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        }
        use Operation::{Create, Open, Read, Rename, Unlink, Write};
        let delays = Delays {
            operations: vec![Open, Create, Read, Write, Rename, Unlink],
            share: Share::one_in(lab.size(ONE_IN, ONE_IN / 10)),
            time: Spread::Fixed(DELAY),
            seed: 1,
        };
        let disk = SlowDisk::mount(&source, &mount, delays).map_err(|e| e.to_string())?;
        disk.set_slow(false);
        let origin = Origin::start().map_err(|e| format!("no origin: {e}"))?;
        Ok(SharedServers { origin, disk, scratch, fresh: Cell::new(1_000_000), next: Cell::new(0) })
    }

    /// Measures a server under all loads, each first without slow operations.
    pub(crate) fn measure(&self, lab: &Lab, subject: &Subject) -> Result<Vec<LoadResult>, String> {
        lab.step(&format!("{}: starting", subject.label));
        let server = RunningServer::start(subject, &self.setup(subject))?;
        let objects = lab.size(5_500, 200);
        for load in [DiskRequest::Cold, DiskRequest::Hot, DiskRequest::Checks] {
            lab.step(&format!("{}: storing {}", subject.label, load.name()));
            streams::fetch(lab, server.address(), &self.paths(load, objects, 0))?;
        }
        let mut results = Vec::new();
        for load in DiskRequest::ALL {
            let fast = self.measure_streams(lab, subject, &server, load, objects)?;
            self.disk.set_slow(true);
            let slow = self.measure_streams(lab, subject, &server, load, objects);
            self.disk.set_slow(false);
            results.push(LoadResult { subject: subject.label.clone(), load, fast, slow: slow? });
        }
        Ok(results)
    }

    fn measure_streams(
        &self,
        lab: &Lab,
        subject: &Subject,
        server: &RunningServer,
        load: DiskRequest,
        objects: u32,
    ) -> Result<Streams, String> {
        let how = if self.disk.is_slow() { "slow" } else { "fast" };
        lab.step(&format!("{}: {}, {how} disk", subject.label, load.name()));
        let time = load.time(lab, self.disk.is_slow());
        let fresh = (super::RATE * time.as_secs_f64()).ceil() as u32;
        let paths = self.paths(load, objects, fresh);
        let (before, loops) = (self.disk.counts().0, blocked(subject, server));
        let (memory, disk) = streams::run(lab, server.address(), &paths, time)?;
        let delayed = self.disk.counts().0 - before;
        let loops = blocked(subject, server).zip(loops);
        let blocked = loops.map(|(after, before)| after.since(&before));
        Ok(Streams { memory, disk, delayed, blocked })
    }

    /// The paths that a load requests. `fresh` is how many of them must not have been requested yet
    /// or recently.
    fn paths(&self, load: DiskRequest, objects: u32, fresh: u32) -> Vec<String> {
        let named = |prefix: &str, numbers: std::ops::Range<u32>| {
            numbers.map(|n| format!("/{prefix}/{n}")).collect::<Vec<_>>()
        };
        match load {
            // Goes on where the run before ended, since the objects of that run are in memory.
            // Successive requests must not have neighbouring names; 7919 is a prime.
            DiskRequest::Cold => {
                let first = self.next.replace((self.next.get() + fresh) % objects);
                (first..first + objects).map(|n| format!("/o/{}", n * 7919 % objects)).collect()
            }
            DiskRequest::Hot => named("hot", 0..HOT),
            DiskRequest::Checks => named("checked", 0..objects / 14),
            DiskRequest::Fills => {
                let first = self.fresh.replace(self.fresh.get() + fresh);
                named("o", first..first + fresh.max(1))
            }
        }
    }

    fn setup(&self, subject: &Subject) -> ServerSetup {
        let family = subject.program.family;
        let store = if family == Family::Weir { "weir" } else { "nginx" };
        let store = self.scratch.0.join("mount").join(store);
        let http = format!(
            "proxy_cache_path {} levels=2:2 keys_zone=stored:20m inactive=1d use_temp_path=off;
            upstream origin {{ server {}; keepalive 64; }}
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache stored;
            proxy_cache_valid 200 1d;",
            store.display(),
            self.origin.address(),
        );
        let status = match family {
            Family::Weir => "location = /status { weir_status; }",
            Family::Nginx | Family::Haproxy => "",
        };
        let server = format!(
            "{status}
            location = /memory {{ return 200 memory; }}
            location /o/ {{ proxy_pass http://origin; }}
            location /hot/ {{ proxy_pass http://origin; }}
            location /checked/ {{
                proxy_pass http://origin;
                proxy_cache_valid 200 1s;
                proxy_cache_revalidate on;
            }}"
        );
        ServerSetup { processes: 2, http, server, ..ServerSetup::default() }
    }
}

/// How long events have waited for the loops so far, as weir reports it.
fn blocked(subject: &Subject, server: &RunningServer) -> Option<Buckets> {
    if subject.program.family != Family::Weir {
        return None;
    }
    Buckets::read(&server.get("/status").ok()?, "weir_event_loop_blocked_seconds")
}

//! `server` blocks that say the same as in the site before are taken from there as they were compiled, so that a change of one of
//! thousands of sites costs little more than that one.
//!
//! - In: the site before ([`Inputs::known`](weir_values::Inputs::known)), and the block that is to be read.
//! - Out: the parts of that site which the new one shares, and what the next site may share with it ([`Site::known`]).
//!
//! A compiled server names variables, groups of servers and locations by their numbers. So the new site first gives each name
//! the number that it has in the site before, and a server's locations keep their places. A place that nothing uses any more
//! goes to the next location; with too many unused names all is compiled anew.
//!
//! A server is taken only if nothing outside of it makes a difference:
//!
//! - all else that the `http` block says is the same, but for groups and maps, which are read anew each time and found by
//!   their numbers;
//! - reading it has left nothing behind but what can be repeated: uses of variables, of `upstream` blocks, of
//!   `status_zone`s, of ACME issuers, and of files of certificates and keys that still hold the same. [`Marks`] tells.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use weir_conf::{Directive, DirectiveBody, Word};
use weir_ssl::KeyFileUses;
use weir_values::{VariableUses, log};

use crate::config::Setup;
use crate::listen::ListenLine;
use crate::request::Request;
use crate::site::location::{Location, LocationId};
use crate::site::main_conf::DraftUses;
use crate::site::{Server, Site};
use crate::variables::VariableId;

/// What a list of directives says, wherever it stands.
type Digest = [u8; 32];

/// A table by digests: a part of one is as good as any hash of it.
#[derive(Clone, Copy, Debug, Default)]
struct ByDigest;

impl BuildHasher for ByDigest {
    type Hasher = DigestHasher;

    fn build_hasher(&self) -> DigestHasher {
        DigestHasher(0)
    }
}

struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_ne_bytes(*first);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The servers of a site that the next one may take.
#[derive(Debug, Default)]
struct KnownServers {
    /// All else that the block says.
    around: Digest,
    /// See [`Setup::has_hello_script`].
    has_hello_script: bool,
    servers: HashMap<Digest, Arc<KnownServer>, ByDigest>,
}

/// A server that another site may take.
struct KnownServer {
    server: Arc<Server>,
    listens: Vec<ListenLine>,
    locations: Vec<LocationId>,
    variables: VariableUses<Request>,
    drafts: DraftUses,
    files: KeyFileUses,
    /// Numbers of `status_zone`s.
    zones: Vec<usize>,
    /// Variables in its lines of heads.
    in_lines: Vec<VariableId>,
    /// The place of the default log, where it uses that.
    default_log: Option<usize>,
}

impl std::fmt::Debug for KnownServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} locations", self.server.name(), self.locations.len())
    }
}

/// What is taken from the site before, while a block is read.
#[derive(Default)]
pub struct Taking<'a> {
    before: Option<(&'a Site, &'a KnownServers)>,
    /// How many servers were taken.
    taken: usize,
    /// What the servers say that are still to be read, in order.
    digests: VecDeque<Digest>,
    known: KnownServers,
    /// Places of locations that are free.
    free: Vec<LocationId>,
    /// Locations of the server that is being read.
    reserved: Vec<LocationId>,
    /// Variables in lines of heads that it has.
    in_lines: Vec<VariableId>,
    /// The place of the default log, where that server uses it.
    default_log: Option<usize>,
    /// How many places in the list of logs it has: one, once a server uses it.
    default_logs: usize,
    /// How many directories for temporary files there were before the first server.
    common_paths: Option<usize>,
}

/// What is counted of things that a server may leave behind and that cannot be repeated.
#[derive(PartialEq, Eq)]
pub struct Marks([usize; 11]);

/// Blocks that are read anew each time, and that servers find by names or numbers.
const READ_ANEW: [&str; 3] = ["server", "upstream", "map"];

/// Whether one of these lines, or of servers in them, is a script for clients' first messages.
fn has_hello_script(lines: &[Directive]) -> bool {
    lines.iter().any(|line| match &line.body {
        DirectiveBody::Block(block) => line.name.is("server") && has_hello_script(block),
        _ => line.name.bytes.starts_with(b"ssl_client_hello_by_lua"),
    })
}

/// More unused names than this, and than used ones, are too many.
const UNUSED: usize = 1000;

impl<'a> Setup<'a> {
    /// The block is going to be read: gives names the numbers that they have in the site before.
    pub fn begin_taking(&mut self, lines: &[Directive]) {
        let is_server = |d: &&Directive| d.name.is("server");
        let around = lines.iter().filter(|d| !READ_ANEW.iter().any(|name| d.name.is(name)));
        self.taking.known.around = digest(around);
        self.has_hello_script = has_hello_script(lines);
        self.taking.known.has_hello_script = self.has_hello_script;
        self.taking.digests = lines.iter().filter(is_server).map(|d| digest([d])).collect();
        let before = self.inputs.known.and_then(|site| site.downcast_ref::<Site>());
        let known = before.and_then(|before| Some((before, before.known.downcast_ref()?)));
        let Some((before, known)) = known else { return };
        let known: &KnownServers = known;
        let own = &self.taking.known;
        if known.around != own.around || known.has_hello_script != own.has_hello_script {
            return;
        }
        let (unused, names) = before.variables.reserved();
        let many = unused > UNUSED.max(names / 2);
        if many || !self.drafts.has_few_unused(&before.main_confs, UNUSED) {
            return;
        }
        if !self.variables.number_as(&before.variables) {
            return;
        }
        self.drafts.number_as(&before.main_confs);
        let wanted: HashSet<&Digest, ByDigest> = self.taking.digests.iter().collect();
        let stay = known.servers.iter().filter(|(digest, _)| wanted.contains(digest));
        let stay: Vec<_> = stay.map(|(_, known)| known).collect();
        let kept: HashSet<u32> = stay.iter().flat_map(|k| &k.locations).map(|id| id.0).collect();
        let zones = stay.iter().flat_map(|known| known.zones.iter().copied());
        self.status_zones.number_as(&before.status_zones, zones);
        self.locations.resize_with(before.locations.len(), || None);
        let places = (0..before.locations.len() as u32).rev();
        self.taking.free = places.filter(|at| !kept.contains(at)).map(LocationId).collect();
        self.taking.before = Some((before, known));
    }

    /// The site that servers are taken from.
    pub fn taken_from(&self) -> Option<&'a Site> {
        self.taking.before.map(|(site, _)| site)
    }

    /// Takes a server from the site before. False: it is to be read.
    pub fn take_server(&mut self) -> bool {
        let Some((before, servers)) = self.taking.before else { return false };
        let Some(digest) = self.taking.digests.front().copied() else { return false };
        let Some(known) = servers.servers.get(&digest) else { return false };
        let same_log = known.default_log.is_none_or(|known| self.default_log() == Some(known));
        if !same_log
            || !self.drafts.can_repeat(&known.drafts)
            || !self.variables.can_repeat(&known.variables)
            || !self.pem_files.repeat(&known.files)
        {
            return false;
        }
        self.taking.digests.pop_front();
        self.variables.repeat(&known.variables);
        self.drafts.repeat(&known.drafts);
        self.status_zones.repeat(&known.zones);
        self.in_lines.extend(&known.in_lines);
        for id in &known.locations {
            let location = before.locations.get(id.0 as usize);
            if let Some(place) = self.locations.get_mut(id.0 as usize) {
                *place = location.cloned();
            }
        }
        self.servers.push((known.server.clone(), known.listens.clone()));
        self.taking.known.servers.insert(digest, known.clone());
        self.taking.taken += 1;
        true
    }

    /// The place of the default log, which gets one now if it has none.
    fn default_log(&mut self) -> Option<usize> {
        let targets = self.log_targets.len();
        let path = self.inputs.access_log.to_owned();
        let target = log::open(&mut self.log_targets, self.inputs.logs, path).ok();
        self.taking.default_logs += self.log_targets.len() - targets;
        target
    }

    /// A server without a log of its own was read: it uses the default one, which is at this place of the list. So many were there
    /// before.
    pub fn note_default_log(&mut self, target: usize, before: usize) {
        self.taking.default_logs += self.log_targets.len() - before;
        self.taking.default_log = Some(target);
    }

    /// A server is going to be read.
    pub fn begin_server(&mut self) -> Marks {
        self.variables.note();
        self.pem_files.note();
        self.drafts.note();
        self.status_zones.note();
        self.taking.reserved.clear();
        self.taking.in_lines.clear();
        self.taking.default_log = None;
        self.taking.common_paths.get_or_insert(self.temp_paths.len());
        self.marks()
    }

    /// A directory for temporary files that the configuration has named before: one of another server goes with that server.
    pub fn use_temp_path(&mut self, at: usize) {
        if self.taking.common_paths.is_some_and(|common| at >= common) {
            self.touch();
        }
    }

    /// It was read, as the last one of the list: the next site may take it if it has left nothing else behind.
    pub fn end_server(&mut self, begin: &Marks) {
        let (variables, files) = (self.variables.noted(), self.pem_files.noted());
        let (drafts, zones) = (self.drafts.noted(), self.status_zones.noted());
        let Some(digest) = self.taking.digests.pop_front() else { return };
        if !variables.is_repeatable() || self.marks() != *begin {
            return;
        }
        let Some((server, listens)) = self.servers.last() else { return };
        let known = KnownServer {
            server: server.clone(),
            listens: listens.clone(),
            locations: std::mem::take(&mut self.taking.reserved),
            variables,
            drafts,
            files,
            zones,
            in_lines: std::mem::take(&mut self.taking.in_lines),
            default_log: self.taking.default_log,
        };
        self.taking.known.servers.entry(digest).or_insert_with(|| Arc::new(known));
    }

    /// A place for a location that is still to be read.
    pub fn reserve(&mut self) -> LocationId {
        let id = self.taking.free.pop().unwrap_or_else(|| {
            self.locations.push(None);
            LocationId(self.locations.len() as u32 - 1)
        });
        self.taking.reserved.push(id);
        id
    }

    /// Variables of a text that becomes a line of a head.
    pub fn note_in_line(&mut self, variables: impl Iterator<Item = VariableId>) {
        let begin = self.taking.in_lines.len();
        self.taking.in_lines.extend(variables);
        self.in_lines.extend(&self.taking.in_lines[begin..]);
    }

    /// What cannot be repeated was done: a server that does it is read each time.
    pub fn touch(&mut self) {
        self.touched += 1;
    }

    /// All of the setup is named here, so that who adds to it decides whether a server may leave something behind there.
    fn marks(&self) -> Marks {
        let Setup {
            modules: _,
            inputs,
            end: _,
            // Noted by themselves.
            variables: _,
            pem_files,
            locations: _,
            servers: _,
            status_zones: _,
            in_lines: _,
            taking,
            drafts,
            // Counted by `touch` where a server adds to them.
            log_targets,
            takes_commands: _,
            takes_changes: _,
            has_init_script: _,
            has_hello_script: _,
            file_caches,
            temp_paths,
            path_names: _,
            warnings,
            staplings,
            caches,
            tls_challenges,
            names_bucket: _,
            touched,
            // Scripts of sessions are read in each site.
            reads_sessions: _,
        } = self;
        Marks([
            drafts.changes(),
            log_targets.len() - taking.default_logs,
            *file_caches as usize,
            temp_paths.len(),
            warnings.len(),
            staplings.len(),
            caches.len(),
            tls_challenges.len(),
            *touched,
            inputs.zones.lines(),
            // Files that something else has read.
            weir_conf::files_asked() - pem_files.reads(),
        ])
    }

    /// What the next site may take, how many servers were taken, and all locations. A free place gets `unused`.
    pub fn end_taking(
        &mut self,
        unused: Location,
    ) -> (Box<dyn Any + Send + Sync>, usize, Vec<Arc<Location>>) {
        let unused = Arc::new(unused);
        let locations = std::mem::take(&mut self.locations).into_iter();
        let locations = locations.map(|location| location.unwrap_or_else(|| unused.clone()));
        let known = std::mem::take(&mut self.taking.known);
        (Box::new(known), self.taking.taken, locations.collect())
    }
}

/// SHA-256 of all words and blocks, each with its length.
pub fn digest<'d>(list: impl IntoIterator<Item = &'d Directive>) -> Digest {
    let mut context = Context::new(&SHA256);
    list.into_iter().for_each(|directive| add(&mut context, directive));
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

fn add(context: &mut Context, directive: &Directive) {
    let mut text = |kind: u8, bytes: &[u8]| {
        context.update(&[kind]);
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    let mut word = |word: &Word| text(u8::from(word.quoted), &word.bytes);
    word(&directive.name);
    directive.args.iter().for_each(word);
    match &directive.body {
        DirectiveBody::None => context.update(&[2]),
        DirectiveBody::Raw(raw) => text(3, raw),
        DirectiveBody::Block(inside) => {
            context.update(&[4]);
            context.update(&inside.digest(|list| digest(list)));
        }
    }
}

//! Reuses compiled `server` blocks of the previous site. So a change of one of thousands of servers
//! costs little more than that server.
//!
//! - In: the previous site ([`Inputs::known`](weir_values::Inputs::known)), and the block that is
//!   being read.
//! - Out: the parts that the new site shares with it, and those that the next site may reuse
//!   ([`Site::known`]).
//!
//! A compiled server refers to variables, upstream groups and locations by number. So the new site
//! first gives each name its number in the previous site, and the locations of a server keep their
//! places. A place that is unused goes to the next location. With too many unused names, everything
//! is compiled again.
//!
//! A server is reused only if nothing outside of it makes a difference:
//!
//! - The rest of the `http` block is unchanged. Upstream groups and maps may change: they are read
//!   again each time, and servers find them by number.
//! - Reading the server has had only effects that can be repeated: uses of variables, of `upstream`
//!   blocks, of `status_zone`s, of ACME issuers, and of certificate and key files that have not
//!   changed. [`Marks`] detects other effects.

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

/// The digest of a list of directives, without their places.
type Digest = [u8; 32];

/// Hashes digests by a part of the digest, which is as good as any hash.
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

/// The servers of a site that the next site may reuse.
#[derive(Debug, Default)]
struct ReusableServers {
    /// The digest of the rest of the `http` block.
    surroundings: Digest,
    /// See [`Setup::has_hello_script`].
    has_hello_script: bool,
    servers: HashMap<Digest, Arc<ReusableServer>, ByDigest>,
}

/// A server that the next site may reuse.
struct ReusableServer {
    server: Arc<Server>,
    listens: Vec<ListenLine>,
    locations: Vec<LocationId>,
    variables: VariableUses<Request>,
    drafts: DraftUses,
    files: KeyFileUses,
    /// The numbers of its `status_zone`s.
    zones: Vec<usize>,
    /// The variables in its header lines.
    in_lines: Vec<VariableId>,
    /// The index of the default log, if the server uses it.
    default_log: Option<usize>,
}

impl std::fmt::Debug for ReusableServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} locations", self.server.name(), self.locations.len())
    }
}

/// The state of reuse while a block is read.
#[derive(Default)]
pub struct ServerReuse<'a> {
    before: Option<(&'a Site, &'a ReusableServers)>,
    /// The number of reused servers.
    reused: usize,
    /// The digests of the servers that were not read yet, in order.
    digests: VecDeque<Digest>,
    known: ReusableServers,
    /// Free places of locations.
    free: Vec<LocationId>,
    /// The locations of the server that is being read.
    reserved: Vec<LocationId>,
    /// The variables in its header lines.
    in_lines: Vec<VariableId>,
    /// The index of the default log, if it uses that.
    default_log: Option<usize>,
    /// The number of entries of the default log in the list of logs: 1 once a server uses it.
    default_logs: usize,
    /// The number of directories for temporary files before the first server.
    common_paths: Option<usize>,
}

/// Counts of effects that a server may have and that cannot be repeated.
#[derive(PartialEq, Eq)]
pub struct Marks([usize; 11]);

/// Blocks that are read again each time. Servers refer to them by name or number.
const READ_ANEW: [&str; 3] = ["server", "upstream", "map"];

/// Whether one of these lines, or of the servers in them, is a script for the ClientHello.
fn has_hello_script(lines: &[Directive]) -> bool {
    lines.iter().any(|line| match &line.body {
        DirectiveBody::Block(block) => line.name.is("server") && has_hello_script(block),
        _ => line.name.bytes.starts_with(b"ssl_client_hello_by_lua"),
    })
}

/// With more unused names than this, if that is more than half of all names, everything is compiled
/// again.
const MOST_UNUSED: usize = 1000;

impl<'a> Setup<'a> {
    /// Called before the block is read: gives names their numbers in the previous site.
    pub fn begin_reuse(&mut self, lines: &[Directive]) {
        let is_server = |d: &&Directive| d.name.is("server");
        let surroundings = lines.iter().filter(|d| !READ_ANEW.iter().any(|name| d.name.is(name)));
        self.reuse.known.surroundings = digest(surroundings);
        self.has_hello_script = has_hello_script(lines);
        self.reuse.known.has_hello_script = self.has_hello_script;
        self.reuse.digests = lines.iter().filter(is_server).map(|d| digest([d])).collect();
        let before = self.inputs.known.and_then(|site| site.downcast_ref::<Site>());
        let known = before.and_then(|before| Some((before, before.known.downcast_ref()?)));
        let Some((before, known)) = known else { return };
        let known: &ReusableServers = known;
        let own = &self.reuse.known;
        if known.surroundings != own.surroundings || known.has_hello_script != own.has_hello_script
        {
            return;
        }
        let (unused, names) = before.variables.reserved();
        let many = unused > MOST_UNUSED.max(names / 2);
        if many || !self.drafts.has_few_unused(&before.main_confs, MOST_UNUSED) {
            return;
        }
        if !self.variables.number_as(&before.variables) {
            return;
        }
        self.drafts.number_as(&before.main_confs);
        let wanted: HashSet<&Digest, ByDigest> = self.reuse.digests.iter().collect();
        let stay = known.servers.iter().filter(|(digest, _)| wanted.contains(digest));
        let stay: Vec<_> = stay.map(|(_, known)| known).collect();
        let kept: HashSet<u32> = stay.iter().flat_map(|k| &k.locations).map(|id| id.0).collect();
        let zones = stay.iter().flat_map(|known| known.zones.iter().copied());
        self.status_zones.number_as(&before.status_zones, zones);
        self.locations.resize_with(before.locations.len(), || None);
        let places = (0..before.locations.len() as u32).rev();
        self.reuse.free = places.filter(|at| !kept.contains(at)).map(LocationId).collect();
        self.reuse.before = Some((before, known));
    }

    /// The previous site, if servers are reused.
    pub fn previous_site(&self) -> Option<&'a Site> {
        self.reuse.before.map(|(site, _)| site)
    }

    /// Reuses a server of the previous site. If it returns false, the server must be read.
    pub fn reuse_server(&mut self) -> bool {
        let Some((before, servers)) = self.reuse.before else { return false };
        let Some(digest) = self.reuse.digests.front().copied() else { return false };
        let Some(known) = servers.servers.get(&digest) else { return false };
        let same_log = known.default_log.is_none_or(|known| self.default_log() == Some(known));
        if !same_log
            || !self.drafts.can_repeat(&known.drafts)
            || !self.variables.can_repeat(&known.variables)
            || !self.pem_files.repeat(&known.files)
        {
            return false;
        }
        self.reuse.digests.pop_front();
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
        self.reuse.known.servers.insert(digest, known.clone());
        self.reuse.reused += 1;
        true
    }

    /// The index of the default log, which is opened if no server has used it.
    fn default_log(&mut self) -> Option<usize> {
        let targets = self.log_targets.len();
        let path = self.inputs.access_log.to_owned();
        let target = log::open(&mut self.log_targets, self.inputs.logs, path).ok();
        self.reuse.default_logs += self.log_targets.len() - targets;
        target
    }

    /// Called when a server without `access_log` was read: it uses the default log at index
    /// `target`. There were `before` logs in the list.
    pub fn note_default_log(&mut self, target: usize, before: usize) {
        self.reuse.default_logs += self.log_targets.len() - before;
        self.reuse.default_log = Some(target);
    }

    /// Called before a server is read.
    pub fn begin_server(&mut self) -> Marks {
        self.variables.note();
        self.pem_files.note();
        self.drafts.note();
        self.status_zones.note();
        self.reuse.reserved.clear();
        self.reuse.in_lines.clear();
        self.reuse.default_log = None;
        self.reuse.common_paths.get_or_insert(self.temp_paths.len());
        self.marks()
    }

    /// Called when a directory for temporary files is used again. A server that uses the directory
    /// of another server cannot be reused, since the other may go.
    pub fn use_temp_path(&mut self, at: usize) {
        if self.reuse.common_paths.is_some_and(|common| at >= common) {
            self.forbid_reuse();
        }
    }

    /// Called when a server was read and added to the list. The next site may reuse it if it had no
    /// other effects.
    pub fn end_server(&mut self, begin: &Marks) {
        let (variables, files) = (self.variables.noted(), self.pem_files.noted());
        let (drafts, zones) = (self.drafts.noted(), self.status_zones.noted());
        let Some(digest) = self.reuse.digests.pop_front() else { return };
        if !variables.is_repeatable() || self.marks() != *begin {
            return;
        }
        let Some((server, listens)) = self.servers.last() else { return };
        let known = ReusableServer {
            server: server.clone(),
            listens: listens.clone(),
            locations: std::mem::take(&mut self.reuse.reserved),
            variables,
            drafts,
            files,
            zones,
            in_lines: std::mem::take(&mut self.reuse.in_lines),
            default_log: self.reuse.default_log,
        };
        self.reuse.known.servers.entry(digest).or_insert_with(|| Arc::new(known));
    }

    /// Reserves a place for a location.
    pub fn reserve(&mut self) -> LocationId {
        let id = self.reuse.free.pop().unwrap_or_else(|| {
            self.locations.push(None);
            LocationId(self.locations.len() as u32 - 1)
        });
        self.reuse.reserved.push(id);
        id
    }

    /// Notes the variables of a text that becomes a header line.
    pub fn note_in_line(&mut self, variables: impl Iterator<Item = VariableId>) {
        let begin = self.reuse.in_lines.len();
        self.reuse.in_lines.extend(variables);
        self.in_lines.extend(&self.reuse.in_lines[begin..]);
    }

    /// Notes an effect that cannot be repeated. The server is then read each time.
    pub fn forbid_reuse(&mut self) {
        self.unrepeatable += 1;
    }

    /// Lists all fields, so that the author of a new one must decide whether a server may change
    /// it.
    fn marks(&self) -> Marks {
        let Setup {
            modules: _,
            inputs,
            end: _,
            // These note changes themselves.
            variables: _,
            pem_files,
            locations: _,
            servers: _,
            status_zones: _,
            in_lines: _,
            reuse,
            drafts,
            // `forbid_reuse` counts changes of these by a server.
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
            unrepeatable,
            // Scripts of sessions are read for each site.
            reads_sessions: _,
        } = self;
        Marks([
            drafts.changes(),
            log_targets.len() - reuse.default_logs,
            *file_caches as usize,
            temp_paths.len(),
            warnings.len(),
            staplings.len(),
            caches.len(),
            tls_challenges.len(),
            *unrepeatable,
            inputs.zones.lines(),
            // Files that other code has read.
            weir_conf::files_asked() - pem_files.reads(),
        ])
    }

    /// The servers that the next site may reuse, the number of reused servers, and all locations.
    /// Free places get `unused`.
    pub fn end_reuse(
        &mut self,
        unused: Location,
    ) -> (Box<dyn Any + Send + Sync>, usize, Vec<Arc<Location>>) {
        let unused = Arc::new(unused);
        let locations = std::mem::take(&mut self.locations).into_iter();
        let locations = locations.map(|location| location.unwrap_or_else(|| unused.clone()));
        let known = std::mem::take(&mut self.reuse.known);
        (Box::new(known), self.reuse.reused, locations.collect())
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

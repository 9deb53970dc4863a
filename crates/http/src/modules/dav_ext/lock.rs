//! LOCK and UNLOCK, and the check that a client holds the locks of files that it changes.

use bytes::Bytes;
use weir_engine::Boxed;
use weir_log::Level;
use weir_proto::http1::Method;
use weir_proto::uri::{Escape, escape, escape_html};

use super::condition::{self, List, ResourceState};
use super::locks::{Lock, LockRequest, LockTable, Locks, key};
use super::{body, file_of, parsed, respond, xml};
use crate::files;
use crate::modules::dav::{self, Depth, depth_header};
use crate::modules::dav_ext::CONF;
use crate::modules::static_;
use crate::phases::{Answer, Step};
use crate::request::Request;

/// Handler in front of the content handlers: a client must hold the locks of resources that it
/// changes.
pub fn check(r: &mut Request) -> Answer<'_> {
    use Method::*;
    match r.method {
        Put | Delete | Mkcol | Copy | Move | Proppatch => Answer::Later(Boxed::new(|| async {
            match is_locked(r).await {
                Ok(true) => Step::Status(423),
                Ok(false) => Step::Next,
                Err(step) => step,
            }
        })),
        _ => Answer::Now(Step::Next),
    }
}

/// Whether the request changes a resource that is locked and whose lock the client does not hold.
async fn is_locked(r: &mut Request) -> Result<bool, Step> {
    let Some(locks) = &CONF.of(r.conf()).locks else { return Ok(false) };
    let held = HeldTokens::read(r, locks).await?;
    let mut changed = Vec::new();
    if r.method != Method::Copy {
        changed.push((r.path.clone(), matches!(r.method, Method::Delete | Method::Move)));
    }
    if matches!(r.method, Method::Copy | Method::Move)
        && let Some(to) = r.header_named(b"destination").and_then(|uri| dav::own_path(r, uri))
    {
        changed.push((to, true));
    }
    let Some(table) = open(r, locks) else { return Ok(false) };
    Ok(changed.iter().any(|(path, with_all)| {
        let below = if *with_all { table.below(path) } else { Vec::new() };
        let mut of_each = below.chunk_by(|one, other| one.root == other.root);
        !held.suffices(&table.over(path)) || !of_each.all(|locks| held.suffices(locks))
    }))
}

/// Removes the locks of a resource that the request has removed.
pub fn remove_locks(r: &Request) {
    if let Some(locks) = &CONF.of(r.conf()).locks
        && let Some(mut table) = open(r, locks)
    {
        table.remove_all(&r.path);
    }
}

fn open<'z>(r: &Request, locks: &'z Locks) -> Option<LockTable<'z>> {
    locks.open(r.event_loop.handle.now())
}

/// The tokens that the client sent.
struct HeldTokens(Vec<u128>);

impl HeldTokens {
    /// Reads `If` and tests its conditions. Status 412 if they do not hold.
    async fn read(r: &mut Request, locks: &Locks) -> Result<HeldTokens, Step> {
        let Some(text) = r.header_named(b"if").map(<[u8]>::to_vec) else {
            return Ok(HeldTokens(Vec::new()));
        };
        let Some(lists) = condition::parse(&text) else {
            r.log(Level::Error, format_args!("client sent invalid \"If\" header"));
            return Err(Step::Status(400));
        };
        if !any_holds(r, locks, &lists).await? {
            return Err(Step::Status(412));
        }
        let states = lists.iter().flat_map(|list| &list.all).filter(|state| !state.not);
        let tokens = states.filter_map(|condition| match condition.state {
            ResourceState::Token(text) => condition::read(text),
            ResourceState::Tag(_) => None,
        });
        Ok(HeldTokens(tokens.collect()))
    }

    fn has(&self, lock: &Lock) -> bool {
        self.0.contains(&lock.token)
    }

    /// Whether a client may write under these locks. It needs the token of each exclusive lock, and
    /// one token of the shared ones.
    fn suffices(&self, locks: &[Lock]) -> bool {
        let (shared, alone): (Vec<_>, Vec<_>) = locks.iter().partition(|lock| lock.request.shared);
        alone.into_iter().all(|lock| self.has(lock))
            && (shared.is_empty() || shared.into_iter().any(|lock| self.has(lock)))
    }
}

async fn any_holds(r: &mut Request, locks: &Locks, lists: &[List<'_>]) -> Result<bool, Step> {
    for list in lists {
        let path = match list.of {
            None => Some(r.path.clone()),
            Some(uri) => dav::own_path(r, uri),
        };
        let Some(path) = path else { continue };
        let asks =
            list.all.iter().any(|condition| matches!(condition.state, ResourceState::Tag(_)));
        let tag = if asks { tag(r, &path).await? } else { None };
        let over = open(r, locks).map_or_else(Vec::new, |table| table.over(&path));
        let is = |state: &ResourceState<'_>| match state {
            ResourceState::Token(text) => {
                condition::read(text).is_some_and(|token| over.iter().any(|l| l.token == token))
            }
            ResourceState::Tag(text) => tag.as_deref() == Some(*text),
        };
        if list.all.iter().all(|condition| is(&condition.state) != condition.not) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The entity tag of the file at a path.
async fn tag(r: &mut Request, path: &[u8]) -> Result<Option<Vec<u8>>, Step> {
    let own = std::mem::replace(&mut r.path, path.to_vec());
    let file = file_of(r).await;
    r.path = own;
    let stat = files::stat(r, &file?).await.ok();
    Ok(stat.map(|stat| static_::etag(stat.0.modified, stat.0.len)))
}

/// Handles LOCK.
pub async fn lock(r: &mut Request) -> Step {
    let Some(locks) = &CONF.of(r.conf()).locks else { return Step::Status(405) };
    match locked(r, locks).await {
        Ok((status, lock, is_new)) => {
            if is_new {
                let token = format!("<{}>", condition::write(lock.token));
                r.response.headers.set(b"Lock-Token", token.as_bytes());
            }
            respond(r, status, Bytes::from(lock_discovery(&lock)))
        }
        Err(step) => step,
    }
}

async fn locked(r: &mut Request, locks: &Locks) -> Result<(u16, Lock, bool), Step> {
    let body = body(r).await?;
    let deep = match depth_header(r) {
        Depth::Zero => false,
        Depth::Infinity | Depth::Absent => true,
        Depth::One | Depth::Invalid => return Err(Step::Status(400)),
    };
    let held = HeldTokens::read(r, locks).await?;
    if body.is_empty() {
        let mut table = open(r, locks).ok_or(Step::Status(500))?;
        let own = table.over(&r.path).into_iter().find(|lock| held.has(lock));
        let mut lock = own.ok_or(Step::Status(412))?;
        table.refresh(&mut lock);
        return Ok((200, lock, false));
    }
    let Some(request) = parsed(r, body, move |body| lock_request(body, deep)).await? else {
        r.log(Level::Error, format_args!("dav_ext: the body of LOCK is no XML"));
        return Err(Step::Status(400));
    };
    let file = file_of(r).await?;
    let there = files::stat(r, &file).await.is_ok();
    let lock = add(r, locks, &held, request, there)?;
    if there {
        return Ok((200, lock, true));
    }
    match dav::create(r, &file).await {
        Ok(()) => Ok((201, lock, true)),
        Err(error) => {
            open(r, locks).into_iter().for_each(|mut table| table.remove(&lock));
            Err(error.into())
        }
    }
}

/// Adds a lock unless an existing one conflicts. Only shared locks are compatible with each other.
/// A lock of a path without a file creates the file, so the client must hold the locks of its
/// directory.
fn add(
    r: &Request,
    locks: &Locks,
    held: &HeldTokens,
    request: LockRequest,
    there: bool,
) -> Result<Lock, Step> {
    let mut table = open(r, locks).ok_or(Step::Status(500))?;
    let own = key(&r.path);
    let (binding, of_directory): (Vec<_>, Vec<_>) =
        table.over(&r.path).into_iter().partition(|lock| lock.request.deep || lock.root == own);
    let below = if request.deep { table.below(&r.path) } else { Vec::new() };
    let conflicts = |lock: &Lock| !(lock.request.shared && request.shared);
    if binding.iter().chain(&below).any(conflicts) || !there && !held.suffices(&of_directory) {
        return Err(Step::Status(423));
    }
    let token = u128::from_ne_bytes(r.event_loop.random_id());
    table.add(&r.path, token, request).ok_or_else(|| {
        let name = locks.zone.name();
        r.log(Level::Error, format_args!("could not allocate a lock in dav_ext zone \"{name}\""));
        Step::Status(507)
    })
}

/// A longer `owner` element is not stored.
const LONGEST_OWNER: usize = 1024;

/// The lock that a body requests. `None` if the body is not XML.
fn lock_request(body: &[u8], deep: bool) -> Option<LockRequest> {
    let document = xml::document(body)?;
    let named = |name: &'static str| {
        document.descendants().filter(move |node| node.has_tag_name(("DAV:", name)))
    };
    let is_shared = |node: roxmltree::Node<'_, '_>| node.has_tag_name(("DAV:", "shared"));
    let shared = named("lockscope").any(|scope| scope.children().any(is_shared));
    let mut owner = Vec::new();
    named("owner")
        .take(1)
        .for_each(|element| xml::write_inside(element, LONGEST_OWNER, &mut owner));
    if owner.len() > LONGEST_OWNER {
        owner.clear();
    }
    Some(LockRequest { deep, shared, owner })
}

fn lock_discovery(lock: &Lock) -> Vec<u8> {
    let mut out =
        b"<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n<D:prop xmlns:D=\"DAV:\">\n<D:lockdiscovery>"
            .to_vec();
    write_active_lock(lock, &mut out);
    out.extend_from_slice(b"</D:lockdiscovery>\n</D:prop>\n");
    out
}

/// Writes an existing lock as an `activelock` element.
pub fn write_active_lock(lock: &Lock, out: &mut Vec<u8>) {
    let depth = if lock.request.deep { "infinity" } else { "0" };
    let scope = if lock.request.shared { "shared" } else { "exclusive" };
    let text = format!(
        "<D:activelock>\n<D:locktype><D:write/></D:locktype>\n\
         <D:lockscope><D:{scope}/></D:lockscope>\n<D:depth>{depth}</D:depth>\n"
    );
    out.extend_from_slice(text.as_bytes());
    if !lock.request.owner.is_empty() {
        out.extend_from_slice(b"<D:owner>");
        out.extend_from_slice(&lock.request.owner);
        out.extend_from_slice(b"</D:owner>\n");
    }
    let text = format!(
        "<D:timeout>Second-{}</D:timeout>\n<D:locktoken><D:href>{}</D:href></D:locktoken>\n\
         <D:lockroot><D:href>",
        lock.left,
        condition::write(lock.token)
    );
    out.extend_from_slice(text.as_bytes());
    let mut root = Vec::new();
    let shown = lock.root.strip_suffix(b"/").filter(|root| !root.is_empty());
    escape(Escape::Uri, shown.unwrap_or(&lock.root), &mut root);
    escape_html(&root, out);
    out.extend_from_slice(b"</D:href></D:lockroot>\n</D:activelock>\n");
}

/// Handles UNLOCK.
pub fn unlock(r: &mut Request) -> Step {
    let Some(locks) = &CONF.of(r.conf()).locks else { return Step::Status(405) };
    let shown = r.header_named(b"lock-token").map(<[u8]>::trim_ascii);
    let shown = shown.and_then(|text| text.strip_prefix(b"<")?.strip_suffix(b">"));
    let Some(shown) = shown else {
        r.log(Level::Error, format_args!("client sent no valid \"Lock-Token\" header"));
        return Step::Status(400);
    };
    let Some(mut table) = open(r, locks) else { return Step::Status(500) };
    let token = condition::read(shown);
    let own = table.over(&r.path).into_iter().find(|lock| Some(lock.token) == token);
    // UNLOCK needs the token of the lock, and a path that the lock covers.
    let Some(lock) = own else { return Step::Status(409) };
    table.remove(&lock);
    Step::Status(204)
}

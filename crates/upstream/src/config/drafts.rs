//! The groups of a configuration that is being read, and the ids that they get.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use weir_conf::{Directive, Error, Spot, Word};
use weir_zone::Declarations;

use super::groups::{
    BlockDigest, GroupDraft, GroupExtras, GroupId, GroupZone, InheritedSettings, Upstream,
    UpstreamBlock, Upstreams,
};
use super::url::Url;

/// The groups of a configuration that is being read.
pub struct Drafts<T> {
    /// By id. `None`: the id is reserved for a group of another configuration, which this one may
    /// not have.
    list: Vec<Option<Draft<T>>>,
    /// Ids by name in lower case. A configuration may have thousands of groups.
    places: HashMap<Vec<u8>, Vec<usize>>,
    /// Ids of groups without a block, by name in lower case and port. One name may have thousands
    /// of ports.
    servers: HashMap<(Vec<u8>, u16), usize>,
    /// Reserved ids, by name in lower case and port.
    kept: HashMap<(Vec<u8>, u16), usize>,
    /// The groups that a part of the configuration refers to, while they are recorded.
    noted: Option<GroupUses>,
}

/// A group of a configuration that is being read.
enum Draft<T> {
    Read(Box<GroupDraft<T>>),
    /// Taken over from another configuration.
    Reused(Arc<Upstream<T>>),
}

impl<T: GroupExtras> Draft<T> {
    /// Whether the group has an `upstream { }` block.
    fn is_block(&self) -> bool {
        match self {
            Draft::Read(draft) => draft.block.is_some(),
            Draft::Reused(_) => true,
        }
    }
}

impl<T> Default for Drafts<T> {
    fn default() -> Self {
        Drafts {
            list: Vec::new(),
            places: HashMap::new(),
            servers: HashMap::new(),
            kept: HashMap::new(),
            noted: None,
        }
    }
}

/// The groups that a part of a configuration refers to. See [`Drafts::note`].
#[derive(Debug, Default)]
pub struct GroupUses {
    /// Names and ids of `upstream { }` blocks.
    blocks: Vec<(Vec<u8>, GroupId)>,
    /// The part did more than refer to blocks.
    more: bool,
}

impl GroupUses {
    /// Whether the part only refers to `upstream { }` blocks. Another configuration with the same
    /// ids can then repeat it.
    pub fn is_repeatable(&self) -> bool {
        !self.more
    }
}

impl<T: GroupExtras> Drafts<T> {
    /// The group that a directive such as `proxy_pass` names.
    pub fn refer(
        &mut self,
        d: &Directive,
        word: &Word,
        url: Url,
        default_port: u16,
    ) -> Result<GroupId, Error> {
        let name = String::from_utf8_lossy(&url.host).into_owned();
        // A block is the only group with its name, or belongs to the first line that refers to it.
        let first = self.places(&url.host).first().copied();
        let block = first.filter(|i| self.at(*i).is_some_and(Draft::is_block));
        if let (Some(_), Some(port)) = (block, url.port) {
            let text = format!("upstream \"{name}\" may not have port {port}");
            return Err(d.error_at(word, text));
        }
        let key = (url.host.to_ascii_lowercase(), url.port.unwrap_or(default_port));
        if let Some(place) = block.or_else(|| self.servers.get(&key).copied()) {
            let id = GroupId(place as u32);
            if let Some(uses) = &mut self.noted {
                uses.blocks.push((url.host, id));
                // A group without a block is bound to its line of the configuration, and its name
                // is resolved.
                uses.more |= block.is_none();
            }
            return Ok(id);
        }
        let place = self.push(GroupDraft {
            host: url.host.clone(),
            port: url.port,
            default_port,
            url,
            at: Spot::new(d, word),
            block: None,
            digest: None,
            text: Default::default(),
        });
        self.note_more();
        Ok(GroupId(place as u32))
    }

    /// Reserves the ids of `other`, so that groups in both configurations have the same ids.
    pub fn number_as(&mut self, other: &Upstreams<T>) {
        let groups = other.list.iter().enumerate().rev();
        let key = |u: &Upstream<T>| (u.host.to_ascii_lowercase(), u.port);
        self.kept = groups.filter_map(|(i, u)| Some((key(u.as_deref()?), i))).collect();
        self.list.resize_with(self.list.len().max(other.list.len()), || None);
    }

    /// Begins to record references to groups, until [`Drafts::noted`].
    pub fn note(&mut self) {
        self.noted = Some(GroupUses::default());
    }

    /// Ends the recording.
    pub fn noted(&mut self) -> GroupUses {
        self.noted.take().unwrap_or_default()
    }

    /// Whether the references in `uses` lead to blocks with the same ids here.
    pub fn can_repeat(&self, uses: &GroupUses) -> bool {
        uses.blocks.iter().all(|(name, id)| {
            let found = self.places(name).iter().find(|i| self.at(**i).is_some());
            found.is_some_and(|i| *i == id.index() && self.at(*i).is_some_and(Draft::is_block))
        })
    }

    fn note_more(&mut self) {
        if let Some(uses) = &mut self.noted {
            uses.more = true;
        }
    }

    /// Takes over the group of a block from another configuration, if the block says the same
    /// there. False if the block must be read.
    pub fn take(
        &mut self,
        name: &[u8],
        digest: &BlockDigest,
        (other, zones): (&Upstreams<T>, &Declarations),
    ) -> bool {
        let key = (name.to_ascii_lowercase(), 0);
        let Some(place) = self.kept.get(&key).copied() else { return false };
        let Some(Some(known)) = other.list.get(place) else { return false };
        let Some((said, zone)) = &known.reusable_as else { return false };
        if said != digest || self.at(place).is_some() || self.places.contains_key(&key.0) {
            return false;
        }
        if let Some((name, size)) = zone
            && GroupZone::declare::<T>(zones, name, *size).is_err()
        {
            return false;
        }
        self.kept.remove(&key);
        self.places.insert(key.0, vec![place]);
        if let Some(slot) = self.list.get_mut(place) {
            *slot = Some(Draft::Reused(Arc::clone(known)));
        }
        true
    }

    /// Adds an `upstream { }` block. `digest` identifies its text.
    pub fn define(
        &mut self,
        d: &Directive,
        word: &Word,
        block: UpstreamBlock<T>,
        digest: Option<BlockDigest>,
    ) -> Result<(), Error> {
        let name = word.lossy();
        self.note_more();
        let first = self.places(&word.bytes).first().copied();
        let first = first.and_then(|i| self.list.get_mut(i)).and_then(Option::as_mut);
        if let Some(Draft::Reused(_)) = first {
            return Err(d.error_at(word, format!("duplicate upstream \"{name}\"")));
        }
        if let Some(Draft::Read(draft)) = first {
            if draft.block.is_some() {
                return Err(d.error_at(word, format!("duplicate upstream \"{name}\"")));
            }
            if let Some(port) = draft.port {
                return Err(draft
                    .at
                    .error(format!("upstream \"{name}\" may not have port {port}")));
            }
            draft.block = Some(block);
            (draft.text, draft.digest) = (text_of(d), digest);
            return Ok(());
        }
        self.push(GroupDraft {
            host: word.bytes.clone(),
            port: None,
            default_port: 80,
            url: Url { host: word.bytes.clone(), port: None, address: None, uri: Vec::new() },
            at: Spot::new(d, word),
            block: Some(block),
            digest,
            text: text_of(d),
        });
        Ok(())
    }

    /// Whether there is a block of this name.
    pub fn is_defined(&self, name: &[u8]) -> bool {
        let mut own = self.places(name).iter().filter_map(|i| self.at(*i));
        own.any(Draft::is_block)
    }

    /// The ids of groups of this name, in the order in which they were added.
    fn places(&self, name: &[u8]) -> &[usize] {
        self.places.get(&name.to_ascii_lowercase()).map_or(&[], Vec::as_slice)
    }

    fn at(&self, place: usize) -> Option<&Draft<T>> {
        self.list.get(place).and_then(Option::as_ref)
    }

    /// Adds a group with the id that is reserved for it, or a new one.
    fn push(&mut self, draft: GroupDraft<T>) -> usize {
        let name = draft.host.to_ascii_lowercase();
        let port = match &draft.block {
            Some(_) => 0,
            None => draft.port.unwrap_or(draft.default_port),
        };
        let kept = self.kept.remove(&(name.clone(), port));
        let place = kept.filter(|place| self.at(*place).is_none()).unwrap_or_else(|| {
            self.list.push(None);
            self.list.len() - 1
        });
        if draft.block.is_none() {
            self.servers.insert((name.clone(), port), place);
        }
        self.places.entry(name).or_default().push(place);
        if let Some(slot) = self.list.get_mut(place) {
            *slot = Some(Draft::Read(Box::new(draft)));
        }
        place
    }

    /// Builds all groups. Names without a block are resolved now.
    pub fn finish(
        self,
        around: &InheritedSettings,
        zones: &Declarations,
        warnings: &mut Vec<Error>,
    ) -> Result<Upstreams<T>, Error> {
        let mut finish = |draft: Draft<T>| match draft {
            Draft::Read(draft) => draft.finish(around, zones, warnings).map(Arc::new),
            Draft::Reused(known) => Ok(known),
        };
        let built = self.list.into_iter().map(|draft| draft.map(&mut finish).transpose());
        let list = built.collect::<Result<_, _>>()?;
        Ok(Upstreams { list })
    }
}

/// The words of a block without their places in the file: its `server` lines, and the rest.
fn text_of(d: &Directive) -> [String; 2] {
    let mut texts = <[String; 2]>::default();
    let [servers, settings] = &mut texts;
    for line in d.block() {
        let text = if line.name.is("server") { &mut *servers } else { &mut *settings };
        for word in std::iter::once(&line.name).chain(&line.args) {
            // With its length, so that different words never give the same text.
            let word = word.lossy();
            let _ = write!(text, "{}:{word} ", word.len());
        }
        text.push(';');
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_name_in_any_case_and_a_server_by_its_port_as_well() {
        let mut drafts = Drafts::<()>::default();
        let d = Directive::new("upstream", ["App"]);
        let word = d.arg(0).unwrap();
        let define = |drafts: &mut Drafts<()>, name: &str| {
            let d = Directive::new("upstream", [name]);
            drafts.define(&d, d.arg(0).unwrap(), UpstreamBlock::new(name.to_owned()), None).is_ok()
        };
        let refer = |drafts: &mut Drafts<()>, host: &str, port: Option<u16>| {
            let url = Url { host: host.into(), port, address: None, uri: Vec::new() };
            drafts.refer(&d, word, url, 80).ok().map(GroupId::index)
        };
        assert!(define(&mut drafts, "App") && !define(&mut drafts, "aPP"));
        assert_eq!(refer(&mut drafts, "app", None), Some(0));
        assert_eq!(refer(&mut drafts, "APP", Some(80)), None);
        assert_eq!(refer(&mut drafts, "other", Some(80)), Some(1));
        assert_eq!(refer(&mut drafts, "OTHER", None), Some(1));
        assert_eq!(refer(&mut drafts, "other", Some(81)), Some(2));
        assert_eq!(refer(&mut drafts, "later", None), Some(3));
        // A block may follow the line that refers to it, if that names no port.
        assert!(drafts.is_defined(b"APP") && !drafts.is_defined(b"later"));
        assert!(define(&mut drafts, "Later") && drafts.is_defined(b"later"));
        assert_eq!(refer(&mut drafts, "later", None), Some(3));
        assert!(!define(&mut drafts, "other"));
    }

    /// Twenty times as many take about twenty times as long, not four hundred times.
    #[test]
    fn many_ports_of_one_host_are_found_in_time() {
        let d = Directive::new("proxy_pass", ["one"]);
        let time = |many: u16| {
            let mut drafts = Drafts::<()>::default();
            let url =
                |port| Url { host: "one".into(), port: Some(port), address: None, uri: Vec::new() };
            let refer = |port| _ = drafts.refer(&d, d.arg(0).unwrap(), url(port), 80).unwrap();
            weir_testkit::spent(|| (1..=many).for_each(refer))
        };
        let (few, many) = (time(1_000), time(20_000));
        assert!(many < few * 100, "{few:?}, {many:?}");
    }
}

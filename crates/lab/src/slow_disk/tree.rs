//! Inode numbers of files. A file keeps its number through renames as long as it has a name. So a
//! file that is looked up twice has one number.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The number of the mounted directory.
const ROOT: u64 = 1;

/// Files by number and by name.
#[derive(Debug)]
pub(crate) struct InodeNumbers {
    root: PathBuf,
    nodes: HashMap<u64, Node>,
    numbers: HashMap<Node, u64>,
    last: u64,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    parent: u64,
    name: OsString,
}

impl Node {
    fn new(parent: u64, name: &OsStr) -> Node {
        Node { parent, name: name.to_owned() }
    }
}

impl InodeNumbers {
    pub(crate) fn new(root: PathBuf) -> InodeNumbers {
        InodeNumbers { root, nodes: HashMap::new(), numbers: HashMap::new(), last: ROOT }
    }

    /// The path of a file. `None` if it has no name any more.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let node = self.nodes.get(&at)?;
            names.push(node.name.as_os_str());
            at = node.parent;
        }
        names.push(self.root.as_os_str());
        Some(names.iter().rev().map(Path::new).collect())
    }

    /// The path of a name in a directory.
    pub(crate) fn child(&self, parent: u64, name: &OsStr) -> Option<PathBuf> {
        self.path(parent).map(|path| path.join(name))
    }

    /// The number of a name. A new name gets the next number.
    pub(crate) fn number(&mut self, parent: u64, name: &OsStr) -> u64 {
        let node = Node::new(parent, name);
        if let Some(number) = self.numbers.get(&node) {
            return *number;
        }
        self.last += 1;
        self.nodes.insert(self.last, node.clone());
        self.numbers.insert(node, self.last);
        self.last
    }

    /// Records that a name was removed.
    pub(crate) fn removed(&mut self, parent: u64, name: &OsStr) {
        if let Some(number) = self.numbers.remove(&Node::new(parent, name)) {
            self.nodes.remove(&number);
        }
    }

    /// Records a rename. A file that had the new name has no name any more.
    pub(crate) fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let (from, to) = (Node::new(from.0, from.1), Node::new(to.0, to.1));
        if from == to {
            return;
        }
        self.removed(to.parent, &to.name);
        if let Some(number) = self.numbers.remove(&from) {
            self.nodes.insert(number, to.clone());
            self.numbers.insert(to, number);
        }
    }
}

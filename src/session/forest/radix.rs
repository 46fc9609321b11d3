// SPDX-License-Identifier: Apache-2.0
//! A radix tree over the token sequences of turns, each from its root on. It finds the deepest turn that is a prefix of a prompt in time
//! linear in the prompt, however many turns share that prefix. Prompts with pictures are compared by their keys: see
//! [`PromptImages`](crate::session::PromptImages).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::session::Turn;

/// The node at which all roots begin.
pub(super) const ROOT: u32 = 0;

/// The part of a turn whose tokens an edge holds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Prompt,
    Response,
}

/// The tree. Edges refer to tokens of turns instead of copying them.
#[derive(Debug)]
pub(super) struct RadixTree {
    nodes: Vec<Node>,
    /// By node and first token of an edge: the node at the end of the edge. A node has its first edge itself, because most nodes have no
    /// other one.
    edges: BTreeMap<(u32, u32), u32>,
}

#[derive(Debug)]
struct Node {
    /// The tokens between the parent node and this one.
    label: Label,
    /// The turn that ends here. If several do, the one that prompts continue.
    turn: Option<u32>,
    above: u32,
    /// Whether a turn of several sampled tokens ends here with its stop token.
    stops: bool,
    /// Whether a turn of several sampled tokens ends one token below, with its stop token.
    stops_below: bool,
    /// The first token of its first edge, and the node at the end of that edge.
    child: Option<(u32, u32)>,
}

#[derive(Debug, Clone)]
struct Label {
    turn: u32,
    part: Part,
    range: Range<u32>,
}

/// Where a sequence departs from the tree below a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Departure {
    /// Tokens of the sequence that are in the tree.
    pub(super) known: usize,
    /// A turn that holds all of these tokens; `None` if the list is empty.
    pub(super) turn: Option<u32>,
    /// Whether these tokens end with a whole response except its stop token.
    pub(super) but_stop: bool,
    /// Whether the tree holds the whole sequence and continues after it.
    pub(super) is_inside: bool,
}

/// The result of following a sequence from a node.
struct Walk {
    /// The last node that was reached.
    node: u32,
    /// Tokens of the sequence up to that node.
    known: usize,
    /// The edge on which the sequence departs or ends, and the number of its tokens that match.
    within: Option<(u32, u32)>,
}

impl Default for RadixTree {
    fn default() -> Self {
        let label = Label { turn: 0, part: Part::Prompt, range: 0..0 };
        Self { nodes: vec![Node::new(ROOT, label)], edges: BTreeMap::new() }
    }
}

impl Node {
    fn new(above: u32, label: Label) -> Self {
        Self { label, turn: None, above, stops: false, stops_below: false, child: None }
    }
}

impl Label {
    fn tokens<'a>(&self, turns: &'a [Arc<Turn>]) -> &'a [u32] {
        let turn = &turns[self.turn as usize];
        let tokens: &[u32] = match self.part {
            Part::Prompt => turn.prompt_keys(),
            Part::Response => &turn.response,
        };
        &tokens[self.range.start as usize..self.range.end as usize]
    }
}

impl RadixTree {
    /// The deepest turn whose tokens are a prefix of `tokens`, and the length of that prefix.
    pub(super) fn deepest(&self, turns: &[Arc<Turn>], tokens: &[u32]) -> (Option<u32>, usize) {
        let mut best = (None, 0);
        self.walk(turns, ROOT, tokens, |node, known| {
            if let Some(turn) = self.nodes[node as usize].turn {
                best = (Some(turn), known);
            }
        });
        best
    }

    /// The node at which `tokens` end below the node `from`; `None` if no part of a turn ends there.
    pub(super) fn find(&self, turns: &[Arc<Turn>], from: u32, tokens: &[u32]) -> Option<u32> {
        let walk = self.walk(turns, from, tokens, |_, _| ());
        (walk.known == tokens.len()).then_some(walk.node)
    }

    /// Where `tokens` depart from the tree below the node `from`. Calls `visit` with each node on the way.
    pub(super) fn departure(
        &self,
        turns: &[Arc<Turn>],
        from: u32,
        tokens: &[u32],
        mut visit: impl FnMut(u32),
    ) -> Departure {
        let walk = self.walk(turns, from, tokens, |node, _| visit(node));
        let (node, matched) = walk.within.filter(|(_, matched)| *matched > 0).unwrap_or((walk.node, 0));
        let (known, Node { label, stops, stops_below, child, .. }) =
            (walk.known + matched as usize, &self.nodes[node as usize]);
        let is_on_edge = matched > 0;
        let but_stop = if is_on_edge { *stops && matched as usize + 1 == label.range.len() } else { *stops_below };
        Departure {
            known,
            turn: (known > 0).then_some(label.turn),
            but_stop: known > 0 && but_stop,
            is_inside: known == tokens.len() && (is_on_edge || child.is_some()),
        }
    }

    /// Adds the tokens of one part of a turn below the node `from`. Returns the node at which they end.
    pub(super) fn insert(&mut self, turns: &[Arc<Turn>], from: u32, turn: u32, part: Part) -> u32 {
        let whole = match part {
            Part::Prompt => turns[turn as usize].prompt.len(),
            Part::Response => turns[turn as usize].response.len(),
        };
        let length = u32::try_from(whole).expect("a log and a request hold fewer tokens");
        let label = Label { turn, part, range: 0..length };
        let tokens = label.tokens(turns);
        let Walk { mut node, known, within } = self.walk(turns, from, tokens, |_, _| ());
        let mut at = known as u32;
        if let Some((edge, matched)) = within.filter(|(_, matched)| *matched > 0) {
            node = self.split(turns, node, edge, matched);
            at += matched;
        }
        if at < length {
            node = self.add(node, Label { range: at..length, ..label.clone() }, tokens[at as usize]);
        }
        node
    }

    /// Records that a turn ends at a node. Prompts continue a turn with a sampled token rather than another, then a trainable one, then the
    /// latest.
    pub(super) fn end(&mut self, turns: &[Arc<Turn>], node: u32, turn: u32) {
        let rank = |id: &u32| {
            let turn = &turns[*id as usize];
            (!turn.response.is_empty(), turn.is_trainable(), *id)
        };
        let end = &mut self.nodes[node as usize];
        end.turn = [end.turn, Some(turn)].into_iter().flatten().max_by_key(rank);
        let Turn { response, about, .. } = &*turns[turn as usize];
        if response.len() > 1 && about.finish.as_deref() == Some("stop") {
            end.stops = true;
            let (above, is_one_below) = (end.above, end.label.range.len() == 1);
            self.nodes[above as usize].stops_below |= is_one_below;
        }
    }

    /// Follows `tokens` from a node. Calls `visit` with each node on the way and the number of tokens up to it.
    fn walk(&self, turns: &[Arc<Turn>], from: u32, tokens: &[u32], mut visit: impl FnMut(u32, usize)) -> Walk {
        let mut walk = Walk { node: from, known: 0, within: None };
        while let Some(first) = tokens.get(walk.known) {
            let Some(edge) = self.edge(walk.node, *first) else { break };
            let label = self.nodes[edge as usize].label.tokens(turns);
            let rest = &tokens[walk.known..];
            if !rest.starts_with(label) {
                walk.within = Some((edge, super::shared(label, rest) as u32));
                break;
            }
            walk.node = edge;
            walk.known += label.len();
            visit(edge, walk.known);
        }
        walk
    }

    /// Splits an edge by a new node, `at` tokens below `above`.
    fn split(&mut self, turns: &[Arc<Turn>], above: u32, edge: u32, at: u32) -> u32 {
        let label = self.nodes[edge as usize].label.clone();
        let tokens = label.tokens(turns);
        let (first, next) = (tokens[0], tokens[at as usize]);
        let middle = label.range.start + at;
        self.nodes[edge as usize].label.range.start = middle;
        let node = self.add(above, Label { range: label.range.start..middle, ..label }, first);
        let below = &mut self.nodes[edge as usize];
        below.above = node;
        let stops_below = below.stops && below.label.range.len() == 1;
        let split = &mut self.nodes[node as usize];
        (split.child, split.stops_below) = (Some((next, edge)), stops_below);
        node
    }

    /// The node at the end of the edge with this first token.
    fn edge(&self, node: u32, first: u32) -> Option<u32> {
        match self.nodes[node as usize].child? {
            (token, child) if token == first => Some(child),
            _ => self.edges.get(&(node, first)).copied(),
        }
    }

    fn add(&mut self, above: u32, label: Label, first: u32) -> u32 {
        let node = u32::try_from(self.nodes.len()).expect("a session has fewer turns than tokens fit into memory");
        self.nodes.push(Node::new(above, label));
        match &mut self.nodes[above as usize].child {
            Some((token, child)) if *token == first => *child = node,
            Some(_) => _ = self.edges.insert((above, first), node),
            child @ None => *child = Some((first, node)),
        }
        node
    }
}

//! Sums of flushes in bounded memory: at the limit, the smallest entries are merged. A flush site
//! ([`FlushSite`]) counts the flushes of one process, call stack, chain of kernel functions and
//! system call. A caller ([`FlushCaller`]) counts system calls of one process and call stack.

use std::collections::{HashMap, HashSet};

use pagewise_model::bounds::{MemoryLimit, OTHER_PROCESSES, OTHER_THREADS};
use pagewise_model::shootdowns::{FlushCaller, FlushProcess, FlushSite, FlushThread, NO_PID};

use super::{Doing, Numbered, SoFar};
use crate::heaviest::{Heaviest, sums};
use crate::stacks::StackId;

/// Maximum numbers of entries of the tables. A site, a caller, a process or a thread takes about
/// 200 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushLimits {
    sites: usize,
    chains: usize,
    processes: usize,
    threads: usize,
    /// Number of pending function calls and of queued requests.
    open: usize,
}

impl FlushLimits {
    pub(super) fn for_memory(limit: MemoryLimit) -> FlushLimits {
        FlushLimits {
            sites: limit.part(8 << 10),
            chains: limit.part(64 << 10),
            processes: limit.part(32 << 10),
            threads: limit.part(16 << 10),
            open: limit.part(4 << 10),
        }
    }
}

impl<K: Eq + std::hash::Hash + Clone, V> Numbered<K, V> {
    /// Keeps some values and renumbers them. Dropped values get the number after the last one.
    /// Returns the new number for each old number.
    fn retain(&mut self, is_kept: impl Fn(usize) -> bool) -> Vec<usize> {
        let old = std::mem::take(&mut self.values);
        let mut numbers = Vec::with_capacity(old.len());
        for (at, value) in old.into_iter().enumerate() {
            let is_kept = is_kept(at);
            numbers.push(is_kept.then_some(self.values.len()));
            self.values.extend(is_kept.then_some(value));
        }
        self.numbers.retain(|_, number| {
            let new = numbers.get(*number).copied().flatten();
            *number = new.unwrap_or(*number);
            new.is_some()
        });
        let others = self.values.len();
        numbers.into_iter().map(|number| number.unwrap_or(others)).collect()
    }
}

/// Weight of a site.
fn weight_of_site(site: &FlushSite) -> u64 {
    site.sends.saturating_add(site.local)
}

fn id(stack: usize) -> StackId {
    u32::try_from(stack).map_or(StackId::OTHER, StackId)
}

fn add_site(to: &mut FlushSite, more: &FlushSite) {
    to.sends += more.sends;
    to.shootdowns += more.shootdowns;
    to.ipis += more.ipis;
    to.local += more.local;
    to.full += more.full;
    to.pages = to.pages.saturating_add(more.pages);
    to.waited += more.waited;
}

fn add_caller(to: &mut FlushCaller, more: &FlushCaller) {
    to.calls += more.calls;
    to.shooting += more.shooting;
    to.shooting_ns += more.shooting_ns;
    to.quiet_ns += more.quiet_ns;
}

impl SoFar {
    /// Merges entries of the tables that exceed their limits.
    pub(super) fn make_room(&mut self) {
        let FlushLimits { sites, chains, processes, threads, open } = self.limits;
        if self.called.len() > open {
            // Threads outside of the target can leave functions without a recorded return.
            self.called.clear();
        }
        if self.queued.len() > open {
            self.queued.clear();
        }
        if self.threads.len() > threads {
            self.fold_threads(threads / 2);
        }
        let are_many = self.sites.values.len() > sites || self.callers.values.len() > sites;
        let is_full = self.stacks.is_full();
        let has_many = self.chains.values.len() > chains || self.processes.values.len() > processes;
        if !(are_many || is_full || has_many) {
            return;
        }
        // Processes are numerous, and one call stack occurs in many of them, so processes are
        // merged before call stacks.
        self.fold_processes(if are_many { processes / 8 } else { processes / 2 });
        self.fold_chains(chains / 2);
        let are_many = self.sites.values.len().max(self.callers.values.len()) > sites / 2;
        let room = if is_full || are_many { self.stacks.room() / 2 } else { usize::MAX };
        let most = if are_many { sites / 8 } else { usize::MAX };
        self.fold_stacks(room, most);
        if self.sites.values.len() > sites / 2 || self.callers.values.len() > sites / 2 {
            self.fold_rows(sites / 4);
        }
    }

    /// Keeps the threads that live or have the largest counts, at most `most` of the ended ones.
    fn fold_threads(&mut self, most: usize) {
        let weight = |it: &FlushThread| it.sends.saturating_add(it.received);
        let ended = self.threads.iter().filter(|(_, doing)| doing.has_ended);
        let counted: HashMap<u32, u64> =
            ended.map(|(tid, doing)| (*tid, weight(&doing.seen))).collect();
        let heaviest = Heaviest::from_sums(counted, most / 2, |_| 1);
        let gone: Vec<u32> = self
            .threads
            .iter()
            .filter(|(tid, doing)| doing.has_ended && !heaviest.has(**tid))
            .map(|(tid, _)| *tid)
            .collect();
        for tid in gone {
            self.close(tid);
            let Some(Doing { seen, .. }) = self.threads.remove(&tid) else { continue };
            self.folded.thread_events += weight(&seen);
            let process = self.other_process();
            let others = self.other_threads.get_or_insert_with(|| FlushThread {
                process,
                tid: 0,
                name: OTHER_THREADS.into(),
                sends: 0,
                ipis: 0,
                received: 0,
            });
            others.sends += seen.sends;
            others.ipis += seen.ipis;
            others.received += seen.received;
        }
    }

    fn other_process(&mut self) -> usize {
        self.processes.number(&NO_PID, || FlushProcess {
            pid: NO_PID,
            name: OTHER_PROCESSES.into(),
            received: 0,
        })
    }

    fn fold_processes(&mut self, most: usize) {
        if self.processes.values.len() <= most {
            return;
        }
        let sites = self.sites.values.iter().map(|it| (it.process, weight_of_site(it)));
        let callers = self.callers.values.iter().map(|it| (it.process, it.calls));
        let received = self.processes.values.iter().enumerate().map(|(at, it)| (at, it.received));
        let heaviest = Heaviest::from_sums(sums(sites.chain(callers).chain(received)), most, |_| 1);
        let others = self.other_process();
        let gone = self.processes.values.iter().enumerate();
        let gone = gone.filter(|(at, _)| *at != others && !heaviest.has(*at));
        let received: u64 = gone.map(|(_, process)| process.received).sum();
        self.processes.values[others].received += received;
        let new = self.processes.retain(|at| at == others || heaviest.has(at));
        let others = self.processes.numbers[&NO_PID];
        let count = self.processes.values.len();
        let number = |old: usize| new.get(old).copied().filter(|it| *it < count).unwrap_or(others);
        self.threads.values_mut().for_each(|it| it.seen.process = number(it.seen.process));
        self.other_threads.iter_mut().for_each(|it| it.process = number(it.process));
        self.rekey(
            |site| FlushSite { process: number(site.process), ..site.clone() },
            |caller| FlushCaller { process: number(caller.process), ..caller.clone() },
        );
    }

    fn fold_chains(&mut self, most: usize) {
        if self.chains.values.len() <= most {
            return;
        }
        let counted = self.sites.values.iter().map(|it| (it.chain, weight_of_site(it)));
        let heaviest = Heaviest::from_sums(sums(counted), most, |_| 1);
        // The empty chain stands for all merged chains.
        let others = self.chains.number(&Vec::new(), Vec::new);
        let new = self.chains.retain(|at| at == others || heaviest.has(at));
        let others = self.chains.numbers[&Vec::new()];
        let count = self.chains.values.len();
        let number = |old: usize| new.get(old).copied().filter(|it| *it < count).unwrap_or(others);
        self.rekey(
            |site| FlushSite { chain: number(site.chain), ..site.clone() },
            FlushCaller::clone,
        );
    }

    /// Keeps the call stacks with the largest counts, at most `most`, within `room` bytes.
    fn fold_stacks(&mut self, room: usize, most: usize) {
        let sites = self.sites.values.iter().map(|it| (id(it.stack), weight_of_site(it)));
        let callers = self.callers.values.iter().map(|it| (id(it.stack), it.calls));
        let mut counted = sums(sites.chain(callers));
        counted.remove(&StackId::OTHER);
        // Each stack counts with at least this size, so that half the capacity contains at most
        // `most`.
        let each = self.stacks.room() / 2 / most.max(1);
        let heaviest = Heaviest::from_sums(counted, room, |it| self.stacks.bytes_of(it).max(each));
        self.folded.stacks += heaviest.folded;
        self.folded.stack_error += heaviest.largest;
        let number = |old: usize| match heaviest.has(id(old)) {
            true => old,
            false => StackId::OTHER.index(),
        };
        self.rekey(
            |site| FlushSite { stack: number(site.stack), ..site.clone() },
            |caller| FlushCaller { stack: number(caller.stack), ..caller.clone() },
        );
        let open = self.threads.values().filter_map(|doing| Some(doing.call?.stack));
        let open: HashSet<StackId> = open.collect();
        self.stacks.retain(|id| heaviest.has(id) || open.contains(&id));
    }

    /// Limits the rows if few processes and stacks occur in many combinations. Keeps the largest
    /// flush sites and the largest callers, at most `most` of each. Merges the other sites into one
    /// for each chain and system call, and the other callers into one for each system call.
    fn fold_rows(&mut self, most: usize) {
        let process = self.other_process();
        let least = |weights: &mut dyn Iterator<Item = u64>| {
            let mut weights: Vec<u64> = weights.collect();
            weights.sort_unstable_by_key(|weight| std::cmp::Reverse(*weight));
            weights.get(most).copied()
        };
        let site = least(&mut self.sites.values.iter().map(weight_of_site));
        let caller = least(&mut self.callers.values.iter().map(|it| it.calls));
        let folded = self.sites.values.iter().map(weight_of_site).zip(std::iter::repeat(site));
        let callers = self.callers.values.iter().map(|it| it.calls).zip(std::iter::repeat(caller));
        let goes = |weight: u64, least: Option<u64>| least.is_some_and(|least| weight <= least);
        self.folded.stacks +=
            folded.chain(callers).filter(|(weight, least)| goes(*weight, *least)).count() as u64;
        // A stack has one site per chain and call: all merged sites may belong to one stack.
        let error = self.sites.values.iter().filter(|it| goes(weight_of_site(it), site));
        let by_stack = sums(error.map(|it| (it.stack, weight_of_site(it))));
        self.folded.stack_error += by_stack.values().copied().max().unwrap_or(0);
        let stack = StackId::OTHER.index();
        self.rekey(
            |it| match goes(weight_of_site(it), site) {
                true => FlushSite { process, stack, ..it.clone() },
                false => it.clone(),
            },
            |it| match goes(it.calls, caller) {
                true => FlushCaller { process, stack, ..it.clone() },
                false => it.clone(),
            },
        );
    }

    /// Changes all sites and callers, and adds up those that become equal.
    fn rekey(
        &mut self,
        site: impl Fn(&FlushSite) -> FlushSite,
        caller: impl Fn(&FlushCaller) -> FlushCaller,
    ) {
        let old = std::mem::take(&mut self.sites).values;
        let mut new_of = Vec::with_capacity(old.len());
        for before in old {
            let made = site(&before);
            let key = (made.process, made.chain, made.call, id(made.stack));
            let known = self.sites.values.len();
            let at = self.sites.number(&key, || made.clone());
            if at < known {
                add_site(&mut self.sites.values[at], &made);
            }
            new_of.push(at);
        }
        for doing in self.threads.values_mut() {
            if let Some(sending) = &mut doing.sending {
                sending.site = new_of[sending.site];
            }
        }
        for before in std::mem::take(&mut self.callers).values {
            let made = caller(&before);
            let known = self.callers.values.len();
            let at =
                self.callers.number(&(made.process, made.call, id(made.stack)), || made.clone());
            if at < known {
                add_caller(&mut self.callers.values[at], &made);
            }
        }
    }
}

//! How a metric comes into the registry.

use std::cell::RefCell;

use prometheus::{Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use super::Tallies;

/// Collects what is being declared; a name that clashes or is ill-formed is a mistake in this file.
pub(super) struct Declare<'a> {
    registry: &'a Registry,
    names: RefCell<Vec<String>>,
}

impl<'a> Declare<'a> {
    pub(super) fn new(registry: &'a Registry) -> Self {
        Self { registry, names: RefCell::default() }
    }

    /// The names of everything that was declared.
    pub(super) fn into_names(self) -> Vec<String> {
        self.names.into_inner()
    }

    pub(super) fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("names and labels in this file are well-formed");
        self.names.borrow_mut().extend(collector.desc().into_iter().map(|desc| desc.fq_name.clone()));
        self.registry.register(Box::new(collector.clone())).expect("names in this file are distinct");
        collector
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::with_opts(options(name, help)))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(options(name, help), labels))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.keep(IntGauge::with_opts(options(name, help)))
    }

    /// A number of seconds, which has a fraction.
    pub(super) fn seconds(&self, name: &str, help: &str) -> Gauge {
        self.keep(Gauge::with_opts(options(name, help)))
    }

    pub(super) fn tallies(&self, name: &str, help: &str, labels: &[&str], edges: &[f64]) -> Tallies {
        self.keep(Tallies::try_new(format!("tokentap_{name}"), help, labels, edges))
    }

    pub(super) fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        let options = HistogramOpts { common_opts: options(name, help), buckets: buckets.to_vec() };
        self.keep(HistogramVec::new(options, labels))
    }
}

pub(super) fn options(name: &str, help: &str) -> Opts {
    Opts::new(format!("tokentap_{name}"), help)
}

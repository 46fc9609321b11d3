//! Registers metrics.

use std::cell::RefCell;

use prometheus::{Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use super::Tallies;

/// The description of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its name in the exposition.
    pub name: String,
    /// Its help text.
    pub help: String,
    /// The names of its labels.
    pub labels: Vec<String>,
}

/// Registers metrics and collects their descriptions. Panics if a name is invalid or registered twice.
pub(super) struct Declare<'a> {
    registry: &'a Registry,
    described: RefCell<Vec<MetricDescription>>,
}

impl<'a> Declare<'a> {
    pub(super) fn new(registry: &'a Registry) -> Self {
        Self { registry, described: RefCell::default() }
    }

    /// All metrics that were declared.
    pub(super) fn into_described(self) -> Vec<MetricDescription> {
        self.described.into_inner()
    }

    pub(super) fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("names and labels of metrics are constants, and valid");
        self.described.borrow_mut().extend(collector.desc().into_iter().map(|desc| MetricDescription {
            name: desc.fq_name.clone(),
            help: desc.help.clone(),
            labels: desc.variable_labels.clone(),
        }));
        self.registry.register(Box::new(collector.clone())).expect("names of metrics are constants, and distinct");
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

    /// A gauge of seconds with a fraction.
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

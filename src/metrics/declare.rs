// SPDX-License-Identifier: Apache-2.0
//! The table of metrics: [`metrics!`] declares the handles of a group, and registers them.

use std::cell::RefCell;

use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::Tallies;

/// Declares a struct with a handle for each metric, and its `declare`, which registers them. A row is the help text as a doc comment, the
/// handle, the kind (a method of [`Declare`]), the name without `tokentap_`, the labels, and the buckets of a histogram.
///
/// A label with values begins with a series of each: alerts see an increase only in a series that began at 0. `with d { … }` has fields that
/// are no metrics, with their values; `d` is the [`Declare`].
macro_rules! metrics {
    (
        $(#[$about:meta])* $group:ident $(with $d:ident { $($(#[$own_doc:meta])* $own_vis:vis $own:ident: $own_type:ty = $own_value:expr),+ $(,)? })? $(;)?
        $($(#[doc = $help:literal])+ $field:ident: $kind:ident $name:literal
            $([$($label:ident $(= $($value:literal)|+)?),+])? $($buckets:ident)?;)+
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        pub struct $group {
            $($($(#[$own_doc])* $own_vis $own: $own_type,)+)?
            $($(#[doc = $help])+ pub $field: declare::handle!($kind),)+
        }

        impl $group {
            fn declare(declare: &Declare) -> Self {
                $(
                    let help = concat!($($help),+).trim();
                    let $field = declare.$kind($name, help $(, &[$(stringify!($label)),+])? $(, &$buckets)?);
                    $($($($($field.with_label_values(&[$value]);)+)?)+)?
                )+
                $(let $d = declare;)?
                Self { $($($own: $own_value,)+)? $($field),+ }
            }
        }
    };
}
pub(super) use metrics;

/// The type of the handle of a kind.
macro_rules! handle {
    (counter) => {
        prometheus::IntCounter
    };
    (counters) => {
        prometheus::IntCounterVec
    };
    (gauge) => {
        prometheus::IntGauge
    };
    (gauges) => {
        prometheus::IntGaugeVec
    };
    (seconds) => {
        prometheus::Gauge
    };
    (histograms) => {
        prometheus::HistogramVec
    };
    (tallies) => {
        $crate::metrics::Tallies
    };
}
pub(super) use handle;

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
#[derive(Default)]
pub(super) struct Declare {
    pub(super) registry: Registry,
    described: RefCell<Vec<MetricDescription>>,
}

impl Declare {
    /// All metrics that were declared.
    pub(super) fn into_described(self) -> Vec<MetricDescription> {
        self.described.into_inner()
    }

    fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
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

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(options(name, help), labels))
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

fn options(name: &str, help: &str) -> Opts {
    Opts::new(format!("tokentap_{name}"), help)
}

// SPDX-License-Identifier: Apache-2.0
// A driver library that is there and has nothing in it, as a half-removed package leaves it.
int there_is_no_driver_here;

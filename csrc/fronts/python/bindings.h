// One short file per area of the Python module; each adds its part to the module here.
#pragma once

#include <nanobind/nanobind.h>

#include "fronts/shared/gil.h"

namespace ringreduce {

void bind_schedule(nanobind::module_& m);
void bind_signals(nanobind::module_& m);
void bind_simulate(nanobind::module_& m);
void bind_synthesis(nanobind::module_& m);
void bind_reduce(nanobind::module_& m);
void bind_user_op(nanobind::module_& m);
void bind_memory(nanobind::module_& m);
void bind_mpi_job(nanobind::module_& m);
void bind_links(nanobind::module_& m);
void bind_work(nanobind::module_& m);
void bind_communicator(nanobind::module_& m);
void bind_fast_methods(nanobind::module_& m);
void bind_connect(nanobind::module_& m);
void bind_meeting(nanobind::module_& m);
void bind_measuring(nanobind::module_& m);
void bind_account(nanobind::module_& m);
void bind_log(nanobind::module_& m);
void bind_values(nanobind::module_& m);

}  // namespace ringreduce

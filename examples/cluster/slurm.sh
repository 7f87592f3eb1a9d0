#!/bin/bash
#SBATCH --job-name=congruence --array=0-15 --cpus-per-task=2 --requeue --open-mode=append
# sbatch examples/cluster/slurm.sh /shared/vectors /shared/mapped /shared/map      # the same command again resumes
OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK bash "${SHARD:-$SLURM_SUBMIT_DIR/examples/cluster/shard.sh}" "$@"

#!/bin/sh
# Train small ensembles and store their outputs, which benchmarks/regret.py works from: about 100 core minutes.
#   LIGHTNING_CALIB_DATA=data RUNS=runs MEMBERS=3 sh benchmarks/regret_outputs.sh [hippocampus camvid massroads_crops nuclei]
# Trainings are shorter than the configs', on purpose: what is compared is how calibrators are chosen. An interrupted
# script goes on where it stopped.
set -eu
DATA=${LIGHTNING_CALIB_DATA:-data} RUNS=${RUNS:-runs} MEMBERS=${MEMBERS:-3} PARALLEL=${PARALLEL:-1}
PYTHON=${PYTHON:-python}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

outputs() { # name, folder of the data, epochs
    at="--config configs/$1.yaml --runs_dir $RUNS --data.init_args.root $DATA/$2 --trainer.max_epochs $3"
    $PYTHON train.py ensemble $at --members "$MEMBERS" --parallel "$PARALLEL"
    $PYTHON train.py predict $at
}

for name in "${@:-all}"; do
    case $name in
    hippocampus) outputs hippocampus hippocampus 14 ;;
    camvid) outputs camvid camvid 10 ;;
    massroads_crops) outputs massroads_crops massroads 10 ;;
    nuclei) outputs nuclei nuclei 14 ;;
    all) sh "$0" hippocampus camvid massroads_crops nuclei ;;
    *) echo "$name is none of hippocampus, camvid, massroads_crops, nuclei" >&2; exit 2 ;;
    esac
done

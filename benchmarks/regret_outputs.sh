#!/bin/sh
# Train small ensembles and store their outputs, which benchmarks/regret.py works from: about 40 core minutes.
#   LIGHTNING_CALIB_DATA=data RUNS=runs MEMBERS=2 sh benchmarks/regret_outputs.sh [hippocampus camvid massroads_crops nuclei]
# Trainings are shorter and crops smaller than the configs', on purpose: what is compared is how calibrators are chosen.
# An interrupted script goes on where it stopped.
set -euf # no file names in place of [96,128]
DATA=${LIGHTNING_CALIB_DATA:-data} RUNS=${RUNS:-runs} MEMBERS=${MEMBERS:-2} PARALLEL=${PARALLEL:-1}
PYTHON=${PYTHON:-python}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

outputs() { # name, folder of the data, epochs, further options
    name=$1 root=$2 epochs=$3
    shift 3
    at="--config configs/$name.yaml --runs_dir $RUNS --data.init_args.root $DATA/$root --trainer.max_epochs $epochs $*"
    $PYTHON train.py ensemble $at --members "$MEMBERS" --parallel "$PARALLEL"
    $PYTHON train.py predict $at
}

for data in "${@:-all}"; do
    case $data in
    hippocampus) outputs hippocampus hippocampus 14 ;;
    camvid) outputs camvid camvid 12 --data.init_args.image_size [120,160] --data.init_args.crop_size [96,128] ;;
    massroads_crops) outputs massroads_crops massroads 12 --data.init_args.crop_size [128,128] ;;
    nuclei) outputs nuclei nuclei 14 ;;
    all) sh "$0" hippocampus camvid massroads_crops nuclei ;;
    *) echo "$data is none of hippocampus, camvid, massroads_crops, nuclei" >&2; exit 2 ;;
    esac
done

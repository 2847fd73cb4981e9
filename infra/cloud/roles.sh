#!/usr/bin/env bash
# Makes the two roles that aws.yaml names, with your own AWS credentials: both may use the bucket, the head's may also
# start and end workers. Given again, it brings the policies up to date.
#
#   infra/cloud/roles.sh BUCKET
set -euo pipefail

[ "$#" = 1 ] || { echo "usage: $0 BUCKET" >&2 && exit 2; }
here=$(dirname "$0")
account=$(aws sts get-caller-identity --query Account --output text)
bucket=$(sed "s/BUCKET/$1/" "$here/bucket.json")
workers=$(sed "s/ACCOUNT/$account/" "$here/workers.json")

for role in marin-head marin-worker; do
    if ! aws iam get-role --role-name "$role" >/dev/null 2>&1; then
        aws iam create-role --role-name "$role" --assume-role-policy-document "$(cat "$here/trust.json")" >/dev/null
        aws iam create-instance-profile --instance-profile-name "$role" >/dev/null
        aws iam add-role-to-instance-profile --instance-profile-name "$role" --role-name "$role"
    fi
    aws iam put-role-policy --role-name "$role" --policy-name bucket --policy-document "$bucket"
done
aws iam put-role-policy --role-name marin-head --policy-name workers --policy-document "$workers"
echo "made marin-head and marin-worker in account $account, for the bucket $1" >&2

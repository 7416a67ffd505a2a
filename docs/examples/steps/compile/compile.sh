echo "compiling for $TARGET with the token $2"
echo '{"name": "size", "value": 5}' >"$1"

/* counterfoil key={key} */
{release}CALL counterfoil_guard_end({values});
COMMIT{chain}
